"""Folders in which files share a session: migrated together, they end with the weights that they ended with."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
from old_torch import OLD, apex_by_facade, apex_without_amp, folder_weights, sessions_on_cpu, torch_on_cpu
from typer.testing import CliRunner

from unifiedamp.cli import app
from unifiedamp.migrate.batch import Batch

FOLDERS = OLD / "folders"
MIGRATED = ["apex_engine", "apex_flag", "torch_choice", "torch_reference", "torch_trainer"]
# A prepared model returns float32, where torch's autocast leaves float16 to what comes behind it.
HALF = {"rel": 2e-3, "abs": 3e-4}
SAME = {"rel": 1e-5, "abs": 1e-6}


def copied(tmp_path: Path, name: str, *changes: tuple[str, str, str]) -> Path:
    folder = tmp_path / name
    shutil.copytree(FOLDERS / name, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file, old, new in changes:
        path = folder / file
        assert path.read_text("utf-8").count(old) == 1
        path.write_text(path.read_text("utf-8").replace(old, new), encoding="utf-8")
    return folder


def written(folder: Path) -> str:
    return CliRunner().invoke(app, ["migrate", "--write", str(folder)], prog_name="unifiedamp").stdout


@pytest.mark.parametrize("flag", [True, False], ids=["flag on", "flag off"])
@pytest.mark.parametrize("name", MIGRATED)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_the_weights_are_those_of_the_old_code(name, flag, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    folder = copied(tmp_path, name)
    with (apex_by_facade if name.startswith("apex") else torch_on_cpu)(monkeypatch):
        old = folder_weights(folder, flag)
    said = written(folder)
    assert "by hand" not in said.replace("0 by hand", "")
    with apex_without_amp(monkeypatch), sessions_on_cpu(monkeypatch):
        new = folder_weights(folder, flag)
    assert new == pytest.approx(old, **(HALF if flag and name.startswith("torch") else SAME))
    assert all(one.status == "nothing to migrate" for one in Batch(folder).done)


REFUSED = [
    ("torch_reference", "engine.py", "scaler.update()", "scaler.update(2.0)", 20, "scaler.update(2.0)"),
    ("torch_trainer", "base.py", "self.scaler.step(self.optimizer)", "done = self.scaler.step(self.optimizer)", 19,
     "the result of self.scaler.step(self.optimizer) is used"),
    ("apex_engine", "engine.py", "        optimizer.step()", "        optimizer.step(lambda: 0)", 16, "lambda"),
    ("apex_flag", "lib/core.py", "def checkpoint", "@amp.half_function\ndef checkpoint", 23, "half_function"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "file", "old", "new", "line", "what"), REFUSED)
def test_where_one_file_is_refused_none_that_shares_its_session_is_written(name, file, old, new, line, what, tmp_path):
    folder = copied(tmp_path, name, (file, old, new))
    alone = (OLD / "torch_amp" / "module_level.py").read_text("utf-8")
    (folder / "alone.py").write_text(alone, encoding="utf-8")
    before = {path: path.read_bytes() for path in folder.rglob("*.py")}
    said = written(folder)
    changed = {path.name for path, content in before.items() if path.read_bytes() != content}
    assert changed == {"alone.py"}
    reasons = [one for one in said.splitlines() if one.startswith(f"{folder / file}:{line}: ")]
    assert any(what in one for one in reasons), said
    assert f"shares a session with {folder / file}, which cannot be migrated" in said
    assert "1 written" in said


def test_a_helper_class_around_the_scaler_is_refused_for_its_own_lines(tmp_path):
    folder = copied(tmp_path, "mae")
    said = written(folder)
    assert f"{folder / 'util/misc.py'}:13: self._scaler.scale(loss).backward(create_graph=create_graph)" in said
    assert "NativeScaler() holds a GradScaler and scales losses by it" in said  # where it is made
    assert "0 migrated, 3 by hand" in said


def test_a_script_that_leaves_the_scaler_out_is_refused_with_the_others(tmp_path):
    """It imports the function that gets a session, and trained without a scaler."""
    folder = copied(tmp_path, "torch_reference")
    text = "from engine import train_one_epoch\n\n\ndef tune(m, c, o, d, a):\n    train_one_epoch(m, c, o, d, a)\n"
    (folder / "finetune.py").write_text(text, encoding="utf-8")
    said = written(folder)
    assert f"{folder / 'finetune.py'}:5: train_one_epoch is called without its scaler" in said
    assert "0 migrated, 3 by hand, 1 with nothing to do" in said


MXNET = """\
from mxnet import autograd, gluon
from mxnet.contrib import amp
from step import step

amp.init()
trainer = gluon.Trainer(net.collect_params(), "sgd")
amp.init_trainer(trainer)
with autograd.record():
    loss = net(data).sum()
    with amp.scale_loss(loss, trainer) as scaled_loss:
        scaled_loss.backward()
trainer.step(4)
step(net, trainer, data)
"""
MXNET_STEP = """\
from mxnet import autograd
from mxnet.contrib import amp


def step(net, trainer, data):
    with autograd.record():
        loss = net(data).sum()
        with amp.scale_loss(loss, trainer) as scaled_loss:
            scaled_loss.backward()
    trainer.step(4)
"""


def test_process_wide_amp_of_a_refused_file_is_kept_in_files_that_import_it(tmp_path):
    (tmp_path / "train.py").write_text(MXNET)
    (tmp_path / "step.py").write_text(MXNET_STEP)
    said = written(tmp_path)
    assert (tmp_path / "train.py").read_text() == MXNET
    assert f"{tmp_path / 'step.py'}:8: amp.init is called 0 times in this file" in said
    assert "shares a session with" in said
