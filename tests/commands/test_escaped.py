"""What others wrote (file names, layer names, lines of code) is shown, and never obeyed, by the terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unicodedata
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from command_runs import CLASSIFIER, MLP

from unifiedamp.config import plugins
from unifiedamp.recording.reading import FORMAT, VERSION
from unifiedamp.visible import visible

HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202e\u2066\x9b31m\x7f"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\u202e\u2066\x9b31m\x7f"
OBEYED = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def unwrapped(text: str) -> str:
    """A terminal's width breaks cells of a table in two; what is looked for has no spaces."""
    return "".join(text.split())


def assert_shown(done, shown: str = SHOWN) -> None:
    text = done.out + done.err
    assert shown in unwrapped(text)
    assert [one for one in text if unicodedata.category(one) in OBEYED and one != "\n"] == []


@pytest.mark.parametrize("name", ["explain", "compare", "tune", "migrate", "report"])
def test_a_file_that_is_not_there(command, name):
    assert_shown(command(name, f"{HOSTILE}.toml"))


def test_arguments(command):
    assert_shown(command("train", f"{HOSTILE}.toml"))
    assert_shown(command("conformance", HOSTILE))
    assert_shown(command(HOSTILE))
    assert_shown(command("doctor", f"--{HOSTILE}"))


def test_a_line_break_in_a_name_makes_no_second_line(command):
    done = command("explain", "a\nunifiedamp: all is well.toml")
    assert done.err.count("\n") == 1


def test_layers_of_a_configuration(command, backend):
    layers = {"backend": backend, "policy": {"name": "float32", "layer_overrides": {HOSTILE: "float32"}}}
    Path("amp.json").write_text(json.dumps(layers))
    assert_shown(command("explain", "amp.json"))


def test_rows_of_compare_and_tune(command, fake):
    policy = f"float32;layers={HOSTILE}:float32"
    assert_shown(command("compare", MLP, "--policies", f"float32,{policy}"))
    assert_shown(command("tune", MLP, "--backend", "toy", "--policies", policy, "--rounds", 1))
    Path(f"{HOSTILE}.toml").write_text(f"workload = '{CLASSIFIER}'\n")
    assert_shown(command("tune", f"{HOSTILE}.toml", "--backend", "toy", "--policies", "mixed_bfloat16", "--rounds", 1))


def test_parity(command, fake):
    assert_shown(command("parity", MLP, "--backends", f"{HOSTILE},toy", "--policies", "bfloat16"))


def test_markup_in_a_name_is_none(command, fake):
    policy = "float32;layers=[/bold]:float32"
    assert "[/bold]" in unwrapped(command("compare", MLP, "--policies", policy).out)
    assert "[/bold]" in unwrapped(command("tune", MLP, "--backend", "toy", "--policies", policy).out)


def test_lines_of_code(command):
    pytest.importorskip("libcst")
    text = f"import torch\n\nwith torch.autocast('cuda'):\n    y = 'A'  # {HOSTILE}\n"
    Path(f"{HOSTILE}.py").write_text(text)
    assert_shown(command("migrate", f"{HOSTILE}.py"))


def test_layers_of_a_recording(command):
    header = {"kind": "header", "format": FORMAT, "version": VERSION, "time": 0.0, "unifiedamp": "0.1.0"}
    header |= {"backend": HOSTILE, "framework": "toy", "framework_version": "1", "device": "cpu", "policy": "float32"}
    header |= {"compute_dtype": "float32", "loss_scale": "none", "scale": 1.0, "accumulate_steps": 1, "every": 1}
    header |= {"first_step": 0, "epsilons": []}
    Path("run.jsonl").write_text(json.dumps(header) + "\n")
    assert_shown(command("report", "run.jsonl"))


def test_what_a_plugin_says(command, monkeypatch):
    point = EntryPoint(HOSTILE, "no_such_module_at_all", plugins.GROUP)
    monkeypatch.setattr(plugins, "backend_entry_points", lambda: {HOSTILE: point})
    assert_shown(command("doctor"))
    assert_shown(command("compare", MLP))


def test_training(command, backend, tmp_path):
    """Names of layers in the head, in warnings, and the folder at the end."""
    Path("mlp.json").write_text(
        json.dumps(
            {
                "amp": {"policy": {"name": "float32", "layer_overrides": {HOSTILE: "float32"}}},
                "workload": str(CLASSIFIER),
                "settings": {"model": "mlp", "samples": 64},
            }
        )
    )
    assert_shown(command.apart("train", "mlp.json", "--backend", backend, "--out", HOSTILE))


def test_warnings(command, monkeypatch):
    code = (
        "import sys, warnings, typer\nfrom unifiedamp.cli.errors import reports_errors\n"
        f"typer.run(reports_errors(lambda: warnings.warn({HOSTILE!r})))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert SHOWN in run.stderr
    assert "\x1b" not in run.stderr


def test_output_that_cannot_show_a_character_shows_its_escape(command):
    pytest.importorskip("libcst")
    Path("größe_中.py").write_text("")
    run = subprocess.run(
        [sys.executable, "-c", "from unifiedamp.cli import app; app()", "migrate", "größe_中.py"],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("gr\\xf6\\xdfe_\\u4e2d.py: nothing to migrate")


def test_what_people_write_stays_as_it_is():
    words = "größe/中文 データ עברית emoji 🚀 tab\t no-break\u00a0space"
    assert visible(words) == words
