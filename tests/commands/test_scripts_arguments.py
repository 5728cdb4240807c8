"""Wrong arguments of the commands that run a script: one line that says what to do, and nothing is run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

COMMANDS = ("compare", "tune", "record", "forecast", "explain")


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_behind_the_dashes(command, name):
    done = command(name, "--")
    assert done.code == 2
    assert "name the command that runs your script" in done.err


@pytest.mark.parametrize("name", COMMANDS)
def test_a_program_that_does_not_exist(command, name):
    done = command(name, "--", "no-such-program", "train.py")
    assert done.code == 2
    assert "no-such-program: there is no such program" in done.err


def test_a_script_without_its_interpreter(command):
    Path("train.py").write_text("print()")
    done = command("compare", "--", "./train.py")
    assert done.code == 2
    assert f"write '-- {Path(sys.executable).name} ./train.py'" in done.err


@pytest.mark.parametrize("name", ["compare", "tune", "explain"])
def test_a_workload_and_a_script(command, name):
    done = command(name, "digits_conv", "--", sys.executable, "-c", "pass")
    assert done.code == 2
    assert "not both" in done.err


@pytest.mark.parametrize("name", COMMANDS)
def test_neither(command, name):
    done = command(name)
    assert done.code == 2
    assert f"unifiedamp {name} -- python train.py" in done.err


@pytest.mark.parametrize(
    "option",
    [["--epochs", 3], ["--backends", "torch"], ["--batch-sizes", "32"], ["--set", "a=b"], ["--config", "a.toml"]],
)
def test_options_of_a_workload_are_refused(command, option):
    done = command("compare", *option, "--", sys.executable, "-c", "pass")
    assert done.code == 2
    assert f"{option[0]} belongs to a workload" in done.err


def test_options_of_a_script_are_refused_without_one(command):
    done = command("compare", "digits_conv", "--serial")
    assert done.code == 2
    assert "--serial belongs to a script" in done.err


@pytest.mark.parametrize(
    ("name", "out"), [("compare", ["--out", "there"]), ("tune", ["--out", "folder"]), ("record", ["--out", "folder"])]
)
def test_an_output_of_the_wrong_kind(command, name, out):
    Path("there").write_text("a file")
    Path("folder").mkdir()
    done = command(name, *out, "--", sys.executable, "-c", "open('ran', 'w')")
    assert done.code == 2
    assert ("is a file; name a folder" in done.err) or ("name a" in done.err)
    assert not Path("ran").exists()


@pytest.mark.parametrize(("name", "file"), [("tune", "amp.tuned.toml"), ("record", "recording.jsonl")])
def test_nothing_is_overwritten_unless_asked(command, name, file):
    Path(file).write_text("mine")
    done = command(name, "--", sys.executable, "-c", "open('ran', 'w')")
    assert done.code == 2
    assert "is there already: pass --write" in done.err
    assert Path(file).read_text() == "mine"
    assert not Path("ran").exists()


def test_a_setting_of_the_backend_that_is_no_pair(command):
    done = command("compare", "--backend-option", "xla", "--", sys.executable, "-c", "pass")
    assert done.code == 2
    assert "NAME=VALUE" in done.err


def test_what_stands_behind_the_dashes_is_the_scripts_alone(command):
    """Options of the same names, and further dashes, go to the script as they are."""
    Path("show.py").write_text("import sys; open('seen', 'w').write(repr(sys.argv[1:]))")
    command("compare", "--policies", "float32", "--", sys.executable, "show.py", "--steps", "7", "--json", "--", "x")
    assert Path("seen").read_text() == "['--steps', '7', '--json', '--', 'x']"
