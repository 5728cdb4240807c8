"""Wrong arguments get one line that says what to type instead; every command has help with an example."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_runs import CLASSIFIER, CONV, installed

COMMANDS = ["init", "train", "doctor", "explain", "compare", "tune", "parity", "migrate", "report"]


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["doctr"], "no such command 'doctr'; did you mean 'doctor'?"),
        (["doctor", "--mesure"], "no such option: --mesure; did you mean '--measure'?"),
        (["explain"], "name what to explain, or your own script"),
        (["train"], "missing argument"),
        (["explain", "digits_con"], "write it as .toml or .json"),
        (["compare", "digits_con"], "is neither a Python file (FILE.py or FILE.py:NAME) nor a .toml or .json file"),
        (["compare", CLASSIFIER.with_name("image_classifer.py")], "did you mean 'image_classifier.py'?"),
        (["compare", f"{CLASSIFIER}:9"], "write FILE.py or FILE.py:NAME"),
        (["compare", CONV, "--set", "model"], "--set takes key=value, got 'model'"),
        (["compare", CONV, "--set", "modle=mlp"], "did you mean 'model'?"),
        (["compare", CONV, "--set", "samples=few"], "setting 'samples'"),
        (["explain", "nowhere.toml"], "cannot be read"),
        (["explain", CONV, "--backend", "torchh"], "unknown backend 'torchh'; did you mean 'torch'?"),
        (["compare", CONV, "--backends", "torhc"], "unknown backend 'torhc'; did you mean 'torch'?"),
        (["compare", CONV, "--policies", "float32,mixed_float61"], "did you mean 'mixed_float16'"),
        (["compare", CONV, "--compile", "defualt"], "--compile: unknown 'defualt'; did you mean 'default'?"),
        (["compare", CONV, "--batch-sizes", "64,many"], "--batch-sizes takes whole numbers of at least 1"),
        (["compare", CONV, "--rounds", "0"], "--rounds"),
        (["tune", CONV, "--out", "there.json"], "name it .toml"),
        (["tune", CONV, "--out", "no/such/folder/x.toml"], "there is no folder"),
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
    Path("amp.toml").write_text(f'workload = "{CLASSIFIER}"\n[amp]\n[settings]\nmodel = "mlp"\n')
    for line in (["train", "amp.toml"], ["tune", "amp.toml"], ["explain", "amp.toml"]):
        done = command(*line)
        assert done.code == 2
        assert done.err == f"unifiedamp: name a backend: --backend {found[0]} (installed: {', '.join(found)})\n"


def test_parity_of_one_backend_is_refused(command, fake):
    done = command("parity", CONV, "--backends", "toy")
    assert done.code == 2
    assert "name two at least (got toy)" in done.err


def test_a_framework_that_is_missing_is_said_in_plain_words(command, monkeypatch):
    monkeypatch.setattr("unifiedamp.config.plugins.is_installed", lambda framework: False)
    done = command("compare", CONV)
    assert done.code == 2
    assert "no framework is installed (" in done.err
    assert "torch: torch is not installed: pip install torch" in done.err
    done = command("explain", CONV, "--backend", "torch")
    assert done.code == 2
    assert "backend 'torch': torch is not installed: pip install torch" in done.err
