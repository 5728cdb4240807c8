"""Wrong arguments get one line that says what to type instead; every command has help with an example."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_runs import installed

COMMANDS = ["doctor", "explain", "compare", "tune", "migrate"]


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["doctr"], "no such command 'doctr'; did you mean 'doctor'?"),
        (["doctor", "--mesure"], "no such option: --mesure; did you mean '--measure'?"),
        (["explain"], "missing argument"),
        (["explain", "digits_con"], "did you mean 'digits_conv'?"),
        (["explain", "nowhere.toml"], "cannot be read"),
        (["explain", "digits_conv", "--backend", "torchh"], "unknown backend 'torchh'; did you mean 'torch'?"),
        (["compare", "digits_conv", "--backends", "torhc"], "unknown backend 'torhc'; did you mean 'torch'?"),
        (["compare", "digits_conv", "--policies", "float32,mixed_float61"], "did you mean 'mixed_float16'"),
        (["compare", "digits_conv", "--compile", "defualt"], "--compile: unknown 'defualt'; did you mean 'default'?"),
        (["compare", "digits_conv", "--batch-sizes", "64,many"], "--batch-sizes takes whole numbers of at least 1"),
        (["compare", "digits_conv", "--rounds", "0"], "--rounds"),
        (["tune", "digits_conv", "--out", "there.json"], "name it .toml"),
        (["tune", "digits_conv", "--out", "no/such/folder/x.toml"], "there is no folder"),
    ],
)
def test_one_line_and_exit_code_2(command, arguments, wanted):
    done = command(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert done.err.startswith("unifiedamp: ")
    assert wanted in done.err


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_and_the_exit_codes(command, name):
    done = command(name, "--help")
    assert done.code == 0
    assert f"Example: unifiedamp {name}" in " ".join(done.out.split())
    assert "Exit code 0" in done.out


def test_several_backends_and_none_named(command, monkeypatch):
    """``--backend`` is what a command line takes, and torch the likely one."""
    monkeypatch.delenv("UNIFIEDAMP_BACKEND", raising=False)
    found = [name for name in ("torch", "tensorflow", "mxnet") if name in installed()]
    if len(found) < 2:
        pytest.skip("a single framework is installed")
    Path("amp.toml").write_text('[amp]\n[train]\nmodel = "mlp"\n')
    for line in (["train", "--config", "amp.toml"], ["tune", "amp.toml"], ["explain", "amp.toml"]):
        done = command(*line)
        assert done.code == 2
        assert done.err == f"unifiedamp: name a backend: --backend {found[0]} (installed: {', '.join(found)})\n"


def test_parity_of_one_backend_is_refused(command, fake):
    done = command("compare", "digits_conv", "--backends", "toy", "--parity")
    assert done.code == 2
    assert "name two at least (got toy)" in done.err


def test_a_framework_that_is_missing_is_said_in_plain_words(command, monkeypatch):
    monkeypatch.setattr("unifiedamp.config.plugins.is_installed", lambda framework: False)
    done = command("compare", "digits_conv")
    assert done.code == 2
    assert "no framework is installed (" in done.err
    assert "torch: torch is not installed: pip install torch" in done.err
    done = command("explain", "digits_conv", "--backend", "torch")
    assert done.code == 2
    assert "backend 'torch': torch is not installed: pip install torch" in done.err


def test_a_recipe_that_is_missing_is_said_in_plain_words(command, monkeypatch):
    monkeypatch.setattr("unifiedamp.workloads.recipes.PACKAGE", "no_such_package")
    done = command("compare", "digits_conv")
    assert done.code == 2
    assert "install unifiedamp whole" in done.err
