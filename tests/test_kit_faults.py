"""``unifiedamp conformance --mutants``: faults that are killed, that survive, that do not apply; on the toy backend."""

import json
import os
import re
import sys
from pathlib import Path
from typing import get_type_hints

import forked
import pytest
from typer.testing import CliRunner

from unifiedamp.backend import Backend
from unifiedamp.cli import app
from unifiedamp.config import plugins
from unifiedamp.conformance import mutants
from unifiedamp.conformance.faults import FAULTS
from unifiedamp.conformance.faults.registry import RoleFault

TESTS = str(Path(__file__).parent)
COMMAND = "import toy.registered; from unifiedamp.cli import app; app()"
TRIED = ("no_floor", "step_dropped", "scope_not_entered", "epsilons_lost")
"""Two that any backend shows; the toy's scope does nothing, so that leaving it out is no fault; it does not record."""


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The command, its report, and what it printed."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")  # a stranger's project counts nothing
    report = folder / "report.json"
    command = [sys.executable, "-c", COMMAND, "conformance", "toy", "--mutants", "--report", str(report)]
    command += [part for name in TRIED for part in ("--fault", name)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([TESTS, *sys.path])}
    run = forked.run(command, env=environment, cwd=folder, timeout=300)
    assert report.exists(), run.stdout + run.stderr
    return run, json.loads(report.read_text())


def test_a_survivor_makes_exit_code_1(done):
    run, report = done
    assert run.returncode == 1
    assert report["survivors"] == ["scope_not_entered"]
    assert re.search(r"scope_not_entered .*SURVIVED", run.stdout)


def test_each_fault_is_killed_by_a_test_or_left_out_with_a_reason(done):
    _, report = done
    states = {each["name"]: (each["state"], each["why"]) for each in report["outcomes"]}
    assert list(states) == list(TRIED)
    assert states["no_floor"][0] == states["step_dropped"][0] == "killed"
    assert states["no_floor"][1].startswith("test_rules.py::test_the_scale_stops_at_its_floor_and_ceiling[toy")
    assert states["epsilons_lost"] == ("not applicable", "no recording: a toy is looked at by hand")


def test_what_is_tested_nowhere_is_told(done):
    run, report = done
    assert report["tests"] > 150
    assert report["failing"] == []
    untested = report["untested"]
    assert any("test_an_epsilon" in test for test in untested["recording is not declared"])
    assert "not tested here, recording is not declared: " in run.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--mutants", "--fault", "no_flor"), "did you mean 'no_floor'"),
        (("--fault", "no_floor"), "go with --mutants"),
        (("--mutants", "-k", "floor"), "no -k"),
        (("--mutants", "--form", "eagre"), "is tested in no form 'eagre'"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(monkeypatch, arguments, said):
    from toy import plugin

    monkeypatch.setattr(plugins, "_in_process", {"toy": plugins.InProcess("toy", plugin)})
    run = CliRunner().invoke(app, ["conformance", "toy", *arguments])
    assert run.exit_code == 2
    assert len(run.stderr.splitlines()) == 1
    assert said in run.stderr


def test_all_killed_is_exit_code_0(monkeypatch):
    from unifiedamp.cli import mutants as command

    killed = mutants.Outcome("no_floor", "x", mutants.KILLED, "test_x")
    monkeypatch.setattr(command, "run_faults", lambda *_: mutants.Report("toy", ["eager"], 1, outcomes=[killed]))
    assert command.run("toy", ["eager"], [], None) == 0


@pytest.mark.parametrize("fault", FAULTS.values(), ids=list(FAULTS))
def test_a_fault_changes_what_a_backend_does(fault):
    """It overrides something that the role, or the backend, has, and says what is wrong in a sentence."""
    base = next(each for each in fault.layer.__mro__ if each.__module__ in (Backend.__module__, RoleFault.__module__))
    own = [
        name for layer in fault.layer.__mro__ if issubclass(layer, base) and layer is not base for name in vars(layer)
    ]
    known = Backend if base is Backend else get_type_hints(base)["inner"]
    assert set(own) & set(dir(known)) - {"__doc__", "__module__"}
    assert re.fullmatch(r"[A-Z`].*\.", fault.about, re.S)
    broken = fault.over(Backend)
    assert issubclass(broken, Backend)
    assert broken.__name__ == "Backend"


def test_a_process_that_hangs_or_dies_kills_its_fault():
    def hang():
        while True:
            pass

    assert "did not end within" in mutants._in_a_fork(hang, 0.2)["died"]
    assert "by signal 9" in mutants._in_a_fork(lambda: os.kill(os.getpid(), 9), 60)["died"]
    assert "exit code 1" in mutants._in_a_fork(lambda: 1 / 0, 60)["died"]
