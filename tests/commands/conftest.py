"""``backend`` is every installed backend that the example has models for; ``command`` runs the command line."""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import forked
import pytest
from command_runs import HERE, installed
from rich.console import Console
from typer.testing import CliRunner

import unifiedamp as ua
from unifiedamp.cli import app
from unifiedamp.config import plugins
from unifiedamp.workloads import workers
from unifiedamp.workloads.workers import Worker


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    wanted = metafunc.config.getoption("--amp-backend", default="all")
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", installed() if wanted == "all" else [wanted])


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Runs ``unifiedamp`` with arguments, in an empty folder."""
    paths = [
        str(HERE),
        str(HERE.parent),
        str(Path(ua.__file__).parents[1]),
        str(Path(ua.__file__).parents[1] / "backends"),
    ]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    monkeypatch.chdir(tmp_path)
    # Workers know what is installed, not what this process has registered for itself.
    monkeypatch.setattr(plugins, "_in_process", {})
    monkeypatch.setattr(workers, "subprocess", forked.like_subprocess())

    def apart(*arguments: object, popen: Any = forked.Popen) -> Done:
        """In a separate process."""
        line = [sys.executable, "-c", "from unifiedamp.cli import app; app()", *map(str, arguments)]
        result = forked.run(line, popen)
        return Done(result.returncode, result.stdout, result.stderr)

    def run(*arguments: object) -> Done:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="unifiedamp")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Done(result.exit_code, result.stdout, result.stderr)

    run.apart = apart
    return run


@pytest.fixture
def forked_scripts(monkeypatch):
    """Scripts are run by processes that have their frameworks imported."""
    monkeypatch.setattr("unifiedamp.workloads.scripts.run.subprocess", forked.like_subprocess())


@pytest.fixture
def fake(monkeypatch, command):
    """Runs of compare and tune are those of ``fake_job.py``; the session under test then needs no framework."""
    from unifiedamp.cli import choices
    from unifiedamp.workloads.compare import run as compare_run
    from unifiedamp.workloads.tune import run as tune_run

    for module in (compare_run, tune_run):
        monkeypatch.setattr(module, "start_job", lambda _: Worker("fake_job:make"))
    monkeypatch.setattr(choices, "backends", lambda items: choices.split(items) or ["toy"])


@pytest.fixture(scope="session")  # frameworks take turns at the tests of a file
def examined():
    """What doctor finds, asked once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugins, "_in_process", {})
        return importlib.import_module("unifiedamp.cli.doctor").examine(False, Console(file=io.StringIO()))
