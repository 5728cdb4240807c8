"""What every command has in common. The list of commands and options is the program's own."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import typer
from command_runs import MLP, installed
from typer.testing import CliRunner

import unifiedamp as ua
from unifiedamp.cli import app
from unifiedamp.cli.completion import COMPLETED
from unifiedamp.cli.time_left import TimeLeft

GROUP = typer.main.get_command(app)
COMMANDS = dict(GROUP.commands)
FREE = {"only", "out", "tolerance", "data", "batch_sizes", "form", "backend_option"}
"""Parameters whose values are numbers, free text, or few and named in the help."""


def invoke(*arguments: str, width: int = 80, **environment: str):
    """The program's output and exit code, in this process."""
    return CliRunner().invoke(app, list(arguments), prog_name="unifiedamp", env=environment, terminal_width=width)


def squeezed(text: str) -> str:
    """Text without spaces and line ends: what wrapping keeps."""
    return re.sub(r"\s", "", text)


def options(command):
    return [each for each in command.params if each.name != "help"]


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_h_is_help(name):
    short, long = (invoke(*filter(None, [name, flag])) for flag in ("-h", "--help"))
    assert short.exit_code == long.exit_code == 0
    assert short.stdout == long.stdout
    assert "Usage: unifiedamp" in short.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_json_and_quiet_are_on_every_command(name):
    flags = {flag: each for each in options(COMMANDS[name]) for flag in each.opts}
    assert flags["--json"].is_flag
    assert flags["--quiet"] is flags["-q"]
    assert flags["--quiet"].is_flag


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_whole_at_every_width(name, width):
    """No bracket is lost, no sentence cut, and no line longer than the terminal."""
    said = invoke(name, "--help", width=width).stdout
    assert max(map(len, said.splitlines())) <= width
    for each in options(COMMANDS[name]):
        assert squeezed(each.help) in squeezed(said), each.name
    for sentence in (COMMANDS[name].help or "").split("\n"):
        assert squeezed(sentence) in squeezed(said)
    assert "Exit code 0" in " ".join(said.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_every_default(name):
    said = squeezed(invoke(name, "--help").stdout)
    for each in options(COMMANDS[name]):
        if each.required or getattr(each, "is_flag", False):
            continue
        shown = f"({each.show_default})" if isinstance(each.show_default, str) else str(each.default)
        assert each.default is not None or isinstance(each.show_default, str), f"{each.name}: no word on its default"
        assert squeezed(f"default: {shown}") in said, each.name


def test_the_list_of_commands_holds_whole_sentences():
    said = squeezed(invoke("-h").stdout)
    for name, command in COMMANDS.items():
        assert squeezed(name + command.short_help) in said


@pytest.mark.parametrize("name", COMMANDS)
def test_a_wrong_option_is_one_line_with_the_nearest_and_exit_code_2(name):
    done = invoke(name, "--quite")
    assert done.exit_code == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "did you mean '--quiet'" in line
    assert line.endswith(f"(see: unifiedamp {name} --help)")


@pytest.mark.parametrize("name", COMMANDS)
def test_values_with_names_are_completed(name):
    callback = next(each.callback for each in app.registered_commands if each.name == name)
    for each in inspect.signature(callback).parameters.values():
        base = get_args(each.annotation)[0] if get_args(each.annotation) else each.annotation
        if "str" in str(base) and each.name not in FREE:
            assert get_args(each.annotation)[1].autocompletion, each.name
        assert each.name in COMPLETED or "str" not in str(base) or each.name in FREE, each.name


def complete(line: str) -> list[str]:
    words = line.split() + ([""] if line.endswith(" ") else [])
    environment = {"_UNIFIEDAMP_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    return invoke(**environment).stdout.split()


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("unifiedamp com", ["compare"]),
        ("unifiedamp tune --backend mx", ["mxnet"]),
        ("unifiedamp explain x.toml --policy mixed_f", ["mixed_float16", "mixed_float8"]),
        ("unifiedamp compare --policies float32,mixed_b", ["float32,mixed_bfloat16"]),
        ("unifiedamp compare --compile off,", ["off,default", "off,max"]),
        ("unifiedamp list compile", ["compile-modes"]),
        ("unifiedamp conformance toy --fault no_f", ["no_floor"]),
    ],
)
def test_shells_complete_values(line, some):
    assert [word for word in complete(line) if word in some] == some


def test_shells_complete_files_of_workloads_and_their_settings(command, tmp_path):
    (tmp_path / "models").mkdir()
    for name in ("mine.py", "models/other.toml", "notes.txt"):
        (tmp_path / name).write_text("")
    assert complete("unifiedamp compare m") == ["mine.py", "models/other.toml"]
    (tmp_path / "mine.py").write_text(
        "class Mine:\n    size: Literal['small', 'large'] = 'small'\n    rate: float = 0.5\n"
        "    def make_model(self): raise SystemExit\n"
    )
    found = complete("unifiedamp compare mine.py --set ")
    assert found == ["size=small", "size=large", "rate=0.5"]


def test_completion_is_installed(command, tmp_path):
    environment = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    line = [sys.executable, "-m", "unifiedamp", "--install-completion", "bash"]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("*.sh"))


def test_version_is_said_by_the_command_and_by_the_module(command):
    assert invoke("--version").stdout == f"unifiedamp {ua.__version__}\n" == invoke("-V").stdout
    line = [sys.executable, "-m", "unifiedamp", "--version"]
    assert subprocess.run(line, capture_output=True, text=True, timeout=120, check=True).stdout.split()[1] == (
        ua.__version__
    )


CHEAP = [
    (("list",), {"schema", "version", "names"}),
    (("list", "policies"), {"schema", "version", "names"}),
    (("schema",), {"$schema", "title", "properties"}),
    (("migrate", "program.py"), {"files", "errors"}),
]


@pytest.mark.parametrize(("arguments", "keys"), CHEAP, ids=lambda each: each[0] if isinstance(each, tuple) else "")
@pytest.mark.parametrize("flags", [(), ("--quiet",)], ids=["", "quiet"])
def test_json_is_one_value_alone_on_standard_output(command, tmp_path, arguments, keys, flags):
    (tmp_path / "program.py").write_text("import torch\n")
    done = command(*arguments, "--json", *flags)
    assert done.code == 0
    assert keys <= set(json.loads(done.out))


def test_what_others_print_goes_to_standard_error_beside_json(tmp_path):
    """A library's or a child process's text does not get between; it is not lost either."""
    code = (
        "import os, subprocess, sys\n"
        "from unifiedamp.cli import streams\n"
        "from unifiedamp.cli.show import console, print_json, say\n"
        "with streams.only_results(True):\n"
        "    print('printed'); os.write(1, b'written\\n'); sys.stdout.flush()\n"
        "    subprocess.run([sys.executable, '-c', 'print(\"from a child\")'], check=True)\n"
        "    say(console(), 'a sentence')\n"
        "    print_json({'one': 1})\n"
        "print('after')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    value, _, rest = done.stdout.rpartition("after\n")
    assert json.loads(value) == {"one": 1}
    assert rest == ""
    assert all(text in done.stderr for text in ("printed", "written", "from a child", "a sentence"))


KEYS = {"schema", "version", "workload", "backend", "policy", "steps", "finished", "epochs", "out", "files", "warnings"}


def test_a_workload_of_a_users_own_by_three_commands_in_json(command):
    """init, train and report; what the file prints, even past Python, does not get between."""
    backend = installed()[0]
    written = json.loads(command("init", "my_model.py", "--backend", backend, "--json").out)
    assert (written["file"], written["backend"]) == ("my_model.py", backend)
    file = Path("my_model.py")
    file.write_text(file.read_text() + "\nimport os\nprint('by Python')\nos.write(1, b'by the library\\n')\n")
    done = command.apart("train", "my_model.py", "--steps", 3, "--json")
    assert done.code == 0, done.err
    assert set(done.json) >= KEYS
    assert done.json["steps"] == 3
    assert all(Path(each).exists() for each in done.json["files"])
    assert "by Python" in done.err
    assert "by the library" in done.err
    done = command.apart("train", "my_model.py", "--steps", 3, "--quiet", "--out", "again")
    assert len([line for line in done.out.splitlines() if not line.startswith("by ")]) == 1
    assert "again" in done.out


def test_init_takes_the_backend_of_the_environment(command, monkeypatch):
    backend = installed()[-1]
    monkeypatch.setenv("UNIFIEDAMP_BACKEND", backend)
    assert json.loads(command("init", "my_model.py", "--json").out)["backend"] == backend
    monkeypatch.setenv("UNIFIEDAMP_BACKEND", "nothing")
    done = command("init", "other_model.py")
    assert done.code == 2
    assert "environment variable UNIFIEDAMP_BACKEND: unknown backend 'nothing'" in done.err


def test_quiet_leaves_the_table_and_no_progress(command, fake):
    arguments = ("compare", MLP, "--policies", "float32,mixed_bfloat16", "--rounds", 1)
    loud, quiet = command(*arguments), command(*arguments, "--quiet")
    assert "float32" in loud.err
    assert quiet.err == ""
    assert [line.split()[:2] for line in quiet.out.splitlines() if "toy" in line] == [
        line.split()[:2] for line in loud.out.splitlines() if "toy" in line
    ]


def test_time_left_follows_the_rate():
    clock = iter([0.0, 30.0, 30.0, 600.0])
    left = TimeLeft(10, lambda: next(clock))
    assert left(0) == ""
    assert left(1) == ", 4 min left"  # nine more at 30 s: four and a half
    assert left(5) == ", 30 s left"
    assert left(10) == ""


def test_listed_names_are_taken():
    """Each listed name is one that the part it belongs to takes."""
    names = json.loads(invoke("list", "--json").stdout)["names"]
    for name in [*names["policies"], *names["aliases"]]:
        ua.Policy.parse(name)
    for name in names["loss-scales"]:
        ua.Policy("float32", loss_scale=name)
    for name in names["operations"]:
        ua.Policy(op_overrides={name: "float32"})
    for name in names["dtypes"]:
        ua.Policy(layer_overrides={"head": name})
    assert set(names["backends"]) == set(ua.available_backends())
    done = invoke("list", "polices")
    assert (done.exit_code, "did you mean 'policies'" in done.stderr) == (2, True)


def test_the_page_of_commands_names_each():
    page = (Path(ua.__file__).parents[1] / "docs/commands.md").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert len(re.findall(rf"^\| \[?`{name}`", page, re.MULTILINE)) >= 2, f"{name}: what it is for, and its JSON"
