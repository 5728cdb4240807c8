"""Classes whose base class, in another file of their package, makes the scaler: they take its session."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
from migrating import identifiers, migrated, replaced
from old_torch import OLD, folder_weights, sessions_on_cpu, torch_on_cpu
from typer.testing import CliRunner

from unifiedamp.cli import app

PARTS = OLD / "inherited"
ENGINE = (PARTS / "engine.py").read_text("utf-8")
TRAIN = """import torch
from parts.engine import SupervisedTrainer


def train(flag):
    torch.manual_seed(1)
    trainer = SupervisedTrainer()
    trainer.fit(3)
    return [w for p in trainer.model.parameters() for w in p.detach().flatten().tolist()]
"""


def placed(folder: Path, engine: str, base: str) -> Path:
    (folder / "parts").mkdir(parents=True)
    (folder / "train.py").write_text(TRAIN, encoding="utf-8")
    (folder / "parts" / "__init__.py").write_text("", encoding="utf-8")
    (folder / "parts" / "engine.py").write_text(engine, encoding="utf-8")
    (folder / "parts" / "base.py").write_text((PARTS / f"{base}.py").read_text("utf-8"), encoding="utf-8")
    return folder


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_the_weights_are_those_of_the_old_code(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    with torch_on_cpu(monkeypatch):
        old = folder_weights(placed(tmp_path / "old", ENGINE, "base_before"), flag=True)
    done = migrated(ENGINE)
    assert done.changed, done.findings
    with sessions_on_cpu(monkeypatch):
        new = folder_weights(placed(tmp_path / "new", done.after.decode(), "base_after"), flag=True)
    assert new == pytest.approx(old, rel=2e-3, abs=3e-4)
    assert not identifiers(done.after.decode()) & {"scaler", "GradScaler"}


def test_what_the_base_class_must_do_is_said_at_the_class():
    (note,) = [one for one in migrated(ENGINE).findings if "takes a session" in one.what]
    assert not note.blocks
    assert ENGINE.splitlines()[note.line - 1].startswith("class SupervisedTrainer")
    assert note.what == "SupervisedTrainer takes a session, self.amp, in place of the scaler of BaseTrainer"
    assert "self.model, self.optimizer = self.amp.prepare(self.model, self.optimizer)" in note.write


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("from .base import", "from library.base import"),  # a package that may not be the user's
        ("(BaseTrainer):", "(BaseTrainer, Saved):"),
        ("self.best = 0.0", "self.scaler = options['scaler']"),
        ("predicted = self.model(inputs)", "predicted = self.predict(inputs)"),
    ],
)
def test_what_a_base_class_beside_it_may_not_bring_stays(old, new):
    assert not migrated(replaced(ENGINE, (old, new))).changed


def test_what_is_not_understood_is_refused_by_line():
    done = migrated(replaced(ENGINE, ("self.scaler.update()", "self.scaler.update(2.0)")))
    assert not done.changed
    assert [(one.line, one.what) for one in done.findings if one.what.startswith("self.scaler.update(2.0)")] == [
        (30, "self.scaler.update(2.0)")
    ]


@pytest.mark.parametrize(
    ("new", "name"),
    [
        ("self.optimizer = self.chosen()", "self.optimizer"),
        ("self.model = torch.nn.Linear(5, 3)", "self.model"),
    ],
)
def test_what_is_made_again_of_something_else_is_refused(new, name):
    done = migrated(replaced(ENGINE, ("self.optimizer = make_optimizer(0.05, self.model)", new)))
    assert not done.changed
    (found,) = [one for one in done.findings if one.blocks]
    assert (found.line, found.what) == (35, f"{name} is made again here, and not prepared")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("torch.cuda.amp.GradScaler(init_scale=64.0)", "2 written"),
        ("make_scaler()", "0 migrated"),  # the base class is there, and shows no scaler
    ],
)
def test_in_a_folder_the_class_goes_with_its_base_class(made, said, tmp_path):
    folder = placed(tmp_path / "folder", ENGINE, "base_before")
    base = folder / "parts" / "base.py"
    base.write_text(replaced(base.read_text(), ("torch.cuda.amp.GradScaler(init_scale=64.0)", made)))
    assert said in CliRunner().invoke(app, ["migrate", "--write", str(folder)], prog_name="unifiedamp").stdout
