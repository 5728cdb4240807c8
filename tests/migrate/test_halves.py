"""Half of a program: functions that other files hand a scaler, or initialize Apex for, take the session instead."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
from migrating import identifiers, migrated
from old_torch import OLD, apex_by_facade, apex_without_amp, folder_weights, sessions_on_cpu, torch_on_cpu
from typer.testing import CliRunner

from unifiedamp.cli import app

HALVES = OLD / "halves"
NAMES = sorted(path.name for path in HALVES.iterdir() if path.is_dir())
# A prepared model returns float32, where torch's autocast leaves float16 to what comes behind it.
HALF = {"rel": 2e-3, "abs": 3e-4}
SAME = {"rel": 1e-5, "abs": 1e-6}


@functools.cache
def migrated_engine(name: str) -> Any:
    return migrated((HALVES / name / "engine.py").read_text("utf-8"))


def placed(folder: Path, engine: str, caller: str) -> Path:
    folder.mkdir()
    (folder / "engine.py").write_text(engine, encoding="utf-8")
    (folder / "train.py").write_text(caller, encoding="utf-8")
    return folder


@pytest.mark.parametrize("flag", [True, False], ids=["flag on", "flag off"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_the_weights_are_those_of_the_old_code(name, flag, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    files = ("engine", "before", "after")
    engine, before, after = (HALVES.joinpath(name, f"{one}.py").read_text("utf-8") for one in files)
    with (apex_by_facade if name.startswith("apex") else torch_on_cpu)(monkeypatch):
        old = folder_weights(placed(tmp_path / "old", engine, before), flag)
    done = migrated_engine(name)
    assert done.changed, done.findings
    with apex_without_amp(monkeypatch), sessions_on_cpu(monkeypatch):
        new = folder_weights(placed(tmp_path / "new", done.after.decode(), after), flag)
    assert new == pytest.approx(old, **(HALF if flag else SAME))
    assert not identifiers(done.after.decode()) & {"scaler", "grad_scaler", "apex", "master_params"}


@pytest.mark.parametrize("name", NAMES)
def test_what_callers_must_do_is_said_at_the_function(name):
    text = (HALVES / name / "engine.py").read_text("utf-8")
    notes = [one for one in migrated_engine(name).findings if "takes a session" in one.what]
    assert len(notes) == 1
    lines = text.splitlines()
    assert lines[notes[0].line - 1].lstrip().startswith("def ")
    assert not notes[0].blocks
    assert '= ua.Amp("torch"' in notes[0].write


def test_a_parameter_behind_others_on_lines_gets_a_line():
    done = migrated_engine("apex_flag").after.decode()
    assert "    dataloader,\n    apex_activated: bool,\n    amp,\n):" in done


ENGINE = (HALVES / "epoch" / "engine.py").read_text("utf-8")
REFUSED = [
    ("scaler.update()", "scaler.update(2.0)", 20, "scaler.update(2.0)"),
    ("scaler.step(optimizer)", "done = scaler.step(optimizer)", 19, "the result of scaler.step(optimizer) is used"),
    ("autocast(enabled=use_amp)", "autocast(enabled=use_amp, dtype=targets.dtype)", 12, "known only when the program"),
    ("    return total", "    log(scaler)\n    return total", 22, "the scaler is passed to log"),
    ("    model.train()", "    scaler = other()\n    model.train()", 8, "the scaler's name is assigned twice"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "line", "what"), REFUSED)
def test_what_is_not_understood_is_refused_by_line(old, new, line, what):
    done = migrated(ENGINE.replace(old, new))
    assert not done.changed
    assert any(one.blocks and one.line == line and what in one.what for one in done.findings), done.findings


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("optimizer, scaler,", "scaler,"),  # a global optimizer
        ("scaler, criterion", "criterion"),  # a global scaler
        ("scaler.scale(loss)", "scaler.scale_by(loss)"),
    ],
)
def test_what_parameters_do_not_bring_stays(old, new):
    assert not migrated(ENGINE.replace(old, new)).changed


@pytest.mark.parametrize("line", ["from engine import train_epoch", "from lib import (\n    engine,\n)"])
def test_in_a_folder_a_half_is_left_where_its_caller_is(line, tmp_path):
    """The caller's scaler comes from a package: nothing here could hand a session over."""
    caller = f"{line}\nfrom lib import make\n\n\ndef main(*given):\n    train_epoch(*given, make())\n"
    folder = placed(tmp_path / "folder", ENGINE, caller)
    said = CliRunner().invoke(app, ["migrate", "--write", str(folder)], prog_name="unifiedamp").stdout
    assert (folder / "engine.py").read_text("utf-8") == ENGINE
    assert "0 migrated" in said


def test_in_a_folder_a_half_that_no_file_calls_is_migrated(tmp_path):
    folder = placed(tmp_path / "folder", ENGINE, "print('no training here')\n")
    said = CliRunner().invoke(app, ["migrate", "--write", str(folder)], prog_name="unifiedamp").stdout
    assert "1 written" in said
    assert "train_epoch takes a session, amp, in place of the scaler" in said
