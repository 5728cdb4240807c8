"""Functions that train by a gluon Trainer under AMP that another file turns on: they take the session."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unifiedamp as ua

if not ua.available_backends()["mxnet"].installed:
    pytest.skip("MXNet is not installed", allow_module_level=True)
ua.Amp("mxnet", "float32")  # MXNet needs the layer's help to be imported
from migrating import identifiers, migrated, replaced  # noqa: E402
from test_mxnet_corpus import SAME, _Nothing, without_amp  # noqa: E402

HALVES = Path(__file__).parent / "old" / "mxnet_halves"
NAMES = sorted(path.name for path in HALVES.iterdir() if path.is_dir())


pytestmark = pytest.mark.usefixtures("engine_forgotten")


def engine(name: str) -> str:
    return (HALVES / name / "engine.py").read_text("utf-8")


@functools.cache
def migrated_engine(name: str) -> Any:
    return migrated(engine(name))


def weights(folder: Path, text: str, name: str, run: str, flag: bool, monkeypatch: Any) -> list[Any]:
    sys.modules.pop("engine", None)
    folder.mkdir()
    (folder / "engine.py").write_text(text, encoding="utf-8")
    caller = without_amp((HALVES / name / "caller.py").read_text("utf-8"))
    with monkeypatch.context() as each:
        each.setattr(sys, "dont_write_bytecode", True)
        each.setattr("builtins._Nothing", _Nothing, raising=False)
        each.syspath_prepend(folder)
        space: dict[str, Any] = {"__name__": name}
        exec(compile(caller, name, "exec"), space)
        found: list[Any] = space[run](flag)
    return found


@pytest.mark.parametrize("flag", [True, False], ids=["flag on", "flag off"])
@pytest.mark.parametrize("name", NAMES)
def test_the_weights_are_those_of_the_old_code(name, flag, tmp_path, monkeypatch):
    done = migrated_engine(name)
    assert done.changed, done.findings
    new = done.after.decode()
    assert not identifiers(new) & {"init_trainer", "contrib", "unscale"}
    old = weights(tmp_path / "old", without_amp(engine(name)), name, "before", flag, monkeypatch)
    found = weights(tmp_path / "new", new, name, "after", flag, monkeypatch)
    for before, after in zip(old, found, strict=True):
        np.testing.assert_allclose(after, before, **SAME)


@pytest.mark.parametrize(("name", "entry"), [("epoch", "training_loop"), ("fit", "fit"), ("network", "train_epoch")])
def test_what_callers_must_do_is_said_at_the_function(name, entry):
    (note,) = [one for one in migrated_engine(name).findings if "takes a session" in one.what]
    assert engine(name).splitlines()[note.line - 1].lstrip().startswith(f"def {entry}(")
    assert 'ua.Amp("mxnet"' in note.write
    assert ("amp.prepare" in note.write) == (name != "fit")  # which prepares its own trainer


def test_a_loop_whose_flag_is_called_as_a_session_takes_it_by_another_name():
    text = EPOCH.replace("import amp", "import amp as mixing").replace("amp.", "mixing.").replace("amp_enabled", "amp")
    done = migrated(text)
    assert "epochs=2, amp=False, *, amp_session):" in done.after.decode()
    (note,) = [one for one in done.findings if "takes a session" in one.what]
    assert "takes a session, amp_session," in note.what
    assert "pass amp_session=amp_session" in note.write


def test_a_loop_without_amp_stays_as_it_is():
    text = engine("epoch")
    assert migrated_engine("epoch").after.decode().endswith(text[text.index("def plain_loop") :])


EPOCH = engine("epoch")
REFUSED = {
    "bare update": ("step(batch_size)\n            tot", "update(1)\n            tot", 16, "no single trainer.step"),
    "a second step": ("    return total", "    trainer.step(1)\n    return total", 16, "no single trainer.step"),
    "another region": ("    return total", "    with mx.autograd.record():\n        net(data)\n    return total", 23,
                       "beside the session's"),
    "its own scaler": ("    return total", "    trainer._amp_loss_scaler = None\n    return total", 23, "own scaler"),
    "more in it": ("mx.autograd.backward(scaled_loss)", "scaled_loss.backward(); log(scaled_loss)", 16, "more than"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_its_line_and_reason(name):
    old, new, line, what = REFUSED[name]
    done = migrated(replaced(EPOCH, (old, new)))
    assert not done.changed, done.diff()
    assert [one.line for one in done.findings if what in one.what and one.blocks] == [line], done.findings


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("loss_fn, trainer, batches, batch_size, epochs", "loss_fn, batches, batch_size, epochs"),  # a global trainer
        ("    total = 0.0\n    for _", "    trainer = make(trainer)\n    total = 0.0\n    for _"),
    ],
)
def test_what_parameters_do_not_bring_stays(old, new):
    done = migrated(replaced(EPOCH, (old, new)))
    assert not done.changed
    assert done.refused


def test_methods_that_a_base_class_may_call_are_refused():
    done = migrated(engine("fit").replace("class Learner:", "class Learner(Base):"))
    assert not done.changed
    assert done.refused
