"""Gluon scripts of many shapes, migrated, end with the weights of the same loop without AMP; with flags on and off.

MXNet casts to float16 on GPUs only: the session is told float32 in its place, and the scale, a power of two, changes
no digit.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unifiedamp as ua

if not ua.available_backends()["mxnet"].installed:
    pytest.skip("MXNet is not installed", allow_module_level=True)
ua.Amp("mxnet", "float32")  # MXNet needs the layer's help to be imported
from migrating import identifiers, migrated  # noqa: E402

from unifiedamp.migrate.batch import Batch  # noqa: E402
from unifiedamp_mxnet.mxnet_api import NUMPY_API  # noqa: E402

if NUMPY_API:
    pytest.skip("these scripts are MXNet 1's, on mx.nd arrays", allow_module_level=True)

FOLDER = Path(__file__).parent / "old" / "mxnet"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
SAME = {"rtol": 1e-4, "atol": 1e-5}


def without_amp(text: str) -> str:
    """Return an old script with calls of amp that do nothing."""
    text = re.sub(r"^( *)from mxnet\.contrib(\.amp)? import amp$", r"\1amp = _Nothing()", text, flags=re.MULTILINE)
    return text.replace("mx.contrib.amp.", "_Nothing().")


class _Nothing:
    """MXNet's amp without an effect."""

    def init(self, target_dtype: str = "float16") -> None:
        assert target_dtype

    def init_trainer(self, trainer: Any) -> None:
        assert trainer is not None

    unscale = init_trainer

    def scale_loss(self, loss: Any, trainer: Any) -> Any:
        from contextlib import nullcontext

        assert trainer is not None
        return nullcontext(loss)


def weights(text: str, name: str, flag: bool | None) -> list[Any]:
    space: dict[str, Any] = {"__name__": name, "_Nothing": _Nothing}
    exec(compile(text, name, "exec"), space)
    return space["main"](*([] if flag is None else [flag]))


@pytest.mark.parametrize("name", NAMES)
def test_the_weights_are_those_of_the_old_code(name):
    text = (FOLDER / f"{name}.py").read_text("utf-8")
    done = migrated(text, f"{name}.py")
    assert done.changed, done.findings
    new = done.after.decode()
    assert not identifiers(new) & {"autograd", "record", "init_trainer", "unscale", "contrib"}
    here = re.sub(r'"mixed_b?float16"', '"float32"', new)
    for flag in (True, False) if "main(use_amp)" in text else (None,):
        old, found = weights(without_amp(text), name, flag), weights(here, name, flag)
        assert len(old) == len(found)
        for before, after in zip(old, found, strict=True):
            np.testing.assert_allclose(after, before, **SAME)


def test_files_of_a_folder_train_together(tmp_path, monkeypatch):
    folder = Path(__file__).parent / "old" / "several"
    for path in folder.glob("*.py"):
        (tmp_path / path.name).write_text(path.read_text("utf-8"))
    batch = Batch(tmp_path)
    batch.write()
    assert (tmp_path / "network.py").read_text("utf-8") == (folder / "network.py").read_text("utf-8")
    new = (tmp_path / "train_several.py").read_text("utf-8").replace('"mixed_float16"', '"float32"')
    assert "amp.step(trainer)" in new
    monkeypatch.syspath_prepend(tmp_path)
    for flag in (True, False):
        old = weights(without_amp((folder / "train_several.py").read_text("utf-8")), "train_several", flag)
        for before, after in zip(old, weights(new, "train_several", flag), strict=True):
            np.testing.assert_allclose(after, before, **SAME)


REFUSED = {
    "bare update": ("trainer.step(4)", "trainer.allreduce_grads()\ntrainer.update(4)", "no single trainer.step"),
    "own scaler": ("trainer.step(4)", "trainer.step(4)\ntrainer._amp_loss_scaler._scale_seq_len = 5", "own scaler"),
    "bare step": ("trainer.step(4)", "trainer.step(4)\ndef more():\n    trainer.step(1)", "left bare"),
    "another record": ("trainer.step(4)", "trainer.step(4)\nwith autograd.record():\n    other = net(x)", "trained in"),
    "Horovod's trainer": (
        'trainer = gluon.Trainer(net.collect_params(), "sgd", update_on_kvstore=False)',
        'import horovod.mxnet as hvd\ntrainer = hvd.DistributedTrainer(net.collect_params(), "sgd")',
        "horovod.mxnet.DistributedTrainer, which exchanges gradients by itself",
    ),
    "nothing scaled": (
        "    with amp.scale_loss(loss, trainer) as scaled_loss:\n        autograd.backward(scaled_loss)\n",
        "    autograd.backward(loss)\n", "amp.init_trainer without amp.scale_loss",
    ),
    "one or a list": ("loss = f(net(x))", "losses = f(net(x))", "cannot be seen"),
}  # fmt: skip
SMALL = """\
from mxnet import autograd, gluon
from mxnet.contrib import amp
amp.init()
trainer = gluon.Trainer(net.collect_params(), "sgd", update_on_kvstore=False)
amp.init_trainer(trainer)
with autograd.record():
    loss = f(net(x))
    with amp.scale_loss(loss, trainer) as scaled_loss:
        autograd.backward(scaled_loss)
trainer.step(4)
"""


def test_every_blocker_is_named_at_once():
    text = SMALL.replace("trainer.step(4)", "done = trainer.step(4)\namp.list_lp16_ops()")
    text = text.replace("amp.init()", "amp.init(target_dtype=pick())").replace(
        "        autograd.b", "        x = autograd.b"
    )
    done = migrated(text)
    assert not done.changed
    wanted = {3: "pick()", 10: "trainer.step", 11: "amp.list_lp16_ops"}
    found = {found.line: found.what for found in done.findings if found.blocks}
    assert {line: found.get(line, "") for line in wanted if wanted[line] not in found.get(line, "")} == {}


def test_scaling_behind_a_flag_under_an_unconditional_init_is_pointed_at():
    text = SMALL.replace(
        "    with amp.scale_loss(loss, trainer) as scaled_loss:\n        autograd.backward(scaled_loss)\n",
        "    if scales:\n        with amp.scale_loss(loss, trainer) as scaled_loss:\n"
        "            autograd.backward(scaled_loss)\n    else:\n        autograd.backward(loss)\n",
    )
    done = migrated(text)
    assert done.changed
    assert [(found.line, found.blocks) for found in done.findings] == [(8, False)]
    assert "always scales" in done.findings[0].write


def test_a_batch_size_may_be_a_length():
    new = migrated(SMALL.replace("trainer.step(4)", "trainer.step(len(x))")).after.decode()
    assert "mean_loss = loss.sum() / len(x)\n" in new


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_reason(name):
    old, new, reason = REFUSED[name]
    text = SMALL.replace(old, new)
    text = text.replace("scale_loss(loss,", "scale_loss(losses,") if "losses" in new else text
    done = migrated(text)
    assert not done.changed, done.diff()
    assert any(reason in found.what and found.blocks for found in done.findings), done.findings


def test_a_flag_that_is_called_as_a_session_is_left_its_name():
    text = "def note(amp):\n    print(amp)\n" + SMALL.replace("import amp", "import amp as mixing").replace(
        "amp.", "mixing."
    )
    new = migrated(text).after.decode()
    assert "amp_session.step(trainer)" in new
    assert "def note(amp):\n    print(amp)\n" in new


def test_a_condition_on_the_step_itself_stays():
    new = migrated(SMALL.replace("trainer.step(4)", "if last:\n    amp.unscale(trainer)\n    trainer.step(4)"))
    assert "if last:\n    amp.unscale(trainer)\n    amp.step(trainer)\n" in new.after.decode()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SMALL.replace("trainer.step(4)", "if (i + 1) % 2 == 0:\n    trainer.step(4)"), [11]),
        (SMALL.replace("trainer.step(4)", "if ready:\n    trainer.step(4)"), []),
        ("net.collect_params().setattr('grad_req', 'add')\n"
         + SMALL.replace("trainer.step(4)", "if (i + 1) % 2 == 0:\n    trainer.step(4)"), []),
    ],
)  # fmt: skip
def test_a_step_that_applied_the_last_of_several_gradients_is_pointed_at(text, said):
    done = migrated(text)
    assert done.changed
    assert [one.line for one in done.findings if "gradients of the last batch alone" in one.what] == said
