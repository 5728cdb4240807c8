"""Keras steps that scale the loss by an optimizer that other files make: they work with a session as they are."""

from __future__ import annotations

import sys
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")
import numpy as np  # noqa: E402
from migrating import migrated, replaced  # noqa: E402
from test_keras import KERAS_2, seed  # noqa: E402
from test_keras_corpus import OLD, SAME, compare, natively  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from unifiedamp.cli import app  # noqa: E402

GIVEN = OLD / "keras_given"
NAMES = ["model", "task", "trainer"]
RUNNING = NAMES if KERAS_2 else ["model", "task"]
"""The trainer clips unscaled gradients, which Keras 3's optimizer does not make."""

pytestmark = [
    pytest.mark.usefixtures("policy_put_back", "engine_forgotten"),
    pytest.mark.filterwarnings("ignore::unifiedamp.errors.PolicyWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def engine(name: str) -> str:
    return (GIVEN / name / "engine.py").read_text("utf-8")


def as_keras_3(text: str) -> str:
    """Return an engine with what Keras 3 calls the same; its optimizer takes scaled gradients."""
    text = natively(text).replace('"get_scaled_loss"', '"scale_loss"')
    return text.replace('hasattr(self.optimizer, "get_unscaled_gradients")', "False")


@pytest.mark.parametrize("flag", [True, False], ids=["flag on", "flag off"])
@pytest.mark.parametrize("name", RUNNING)
def test_the_weights_are_those_of_a_loss_scale_optimizer(name, flag, tmp_path, monkeypatch):
    done = migrated(engine(name))
    assert (done.status, done.refused) == ("works as it is", False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    text = done.after.decode()
    (tmp_path / "engine.py").write_text(text if KERAS_2 else as_keras_3(text), encoding="utf-8")
    space: dict[str, Any] = {"__name__": name}
    exec(compile((GIVEN / name / "caller.py").read_text("utf-8"), name, "exec"), space)
    seed()
    old = space["before"](flag)
    tf.keras.mixed_precision.set_global_policy("float32")
    seed()
    for was, now in zip(old, space["after"](flag), strict=True):
        np.testing.assert_allclose(now, was, **SAME)


@pytest.mark.parametrize("name", ["always_scaled", "asks_its_optimizer"])
def test_a_model_that_is_compiled_in_the_same_file_keeps_its_steps(name):
    text = (GIVEN / f"{name}.py").read_text("utf-8")
    done = migrated(text)
    assert done.changed, done.findings
    new = done.after.decode()
    step = text[text.index("    def train_step") : text.index("def main")]
    assert step in new
    compare(text, natively(text), new if KERAS_2 else natively(new), name)


@pytest.mark.parametrize("name", NAMES)
def test_what_callers_do_is_said_at_the_step(name):
    done = migrated(engine(name))
    (note,) = done.findings
    assert engine(name).splitlines()[note.line - 1].lstrip().startswith("def train_step")
    assert "amp.prepare(model, optimizer)" in note.write


TASK, TRAINER = engine("task"), engine("trainer")
UNSCALED = "            grads = optimizer.get_unscaled_gradients(grads)\n"
APPLY = "        optimizer.apply_gradients(list(zip(grads, tvars)))\n"
REFUSED = {
    "summed outside": (
        "list(zip(grads, tvars))", "list(zip(grads, tvars)), skip_gradients_aggregation=True", 27, "has arguments that"
    ),
    "accumulated": ("list(zip(grads, tvars))", "list(zip(self.total, tvars))", 27, "other gradients than those"),
    "at times": (APPLY, "        if self.last:\n    " + APPLY, 28, "other gradients than those"),
    "twice": (UNSCALED, UNSCALED + UNSCALED, 13, "2 calls of get_unscaled_gradients and 1 of apply_gradients"),
    "elsewhere": (APPLY, "", 21, "sets no policy"),
    "unknown calls": (APPLY, APPLY + "        optimizer.finish()\n", 28, "optimizer.finish"),
    "global policy": (
        "if isinstance(optimizer, mixed_precision.LossScaleOptimizer):\n                scaled",
        "if mixed_precision.global_policy().name == 'mixed_float16':\n                scaled", 20, "alone"
    ),
    "Horovod": (
        "        tvars =", "        tape = horovod.DistributedGradientTape(tape)\n        tvars =", 23,
        "exchanges gradients"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_prepared_optimizer_does_otherwise_is_refused(name):
    old, new, line, what = REFUSED[name]
    done = migrated(replaced(TASK, (old, new)))
    assert not done.changed
    found = [one for one in done.findings if one.blocks and what in one.what]
    assert [one.line for one in found] == [line], done.findings


def test_an_optimizer_that_the_file_wraps_is_not_a_given_one():
    text = TRAINER.replace("= optimizer\n", "= tf.keras.mixed_precision.LossScaleOptimizer(optimizer)\n")
    done = migrated(text)
    assert "amp.prepare(self.model, self.optimizer)" in done.after.decode()
    assert [(one.line, one.what) for one in done.findings] == [(9, "the policy is set elsewhere, or never")]


MODEL = engine("model")
COMPILE = """\
    def compile(self, opt, own_loss):
        super().compile(GIVEN)
        self.own_loss = own_loss

    def train_step"""


@pytest.mark.parametrize(("given", "refused"), [("optimizer=opt", False), ("opt", False), ("", True), ("'sgd'", True)])
def test_a_compile_of_its_own_must_pass_the_optimizer_on(given, refused):
    done = migrated(replaced(MODEL, ("    def train_step", COMPILE.replace("GIVEN", given))))
    assert done.refused == refused
    if refused:
        assert [(one.line, "passes no optimizer" in one.what) for one in done.findings] == [(7, True)]


@pytest.mark.parametrize(
    ("parameters", "given", "refused"),
    [
        ("own_loss=None, **kwargs", "**kwargs", False),
        ("*args, own_loss=None", "*args", False),
        ("optimizer, own_loss, **kwargs", "**kwargs", True),
        ("own_loss, *args", "*args", True),
        ("own_loss, **kwargs", "**other", True),
    ],
)
def test_a_compile_of_its_own_may_pass_all_on_that_it_is_given(parameters, given, refused):
    compiles = COMPILE.replace("opt, own_loss", parameters).replace("GIVEN", given)
    assert migrated(replaced(MODEL, ("    def train_step", compiles))).refused == refused


def test_the_optimizer_of_a_model_that_the_file_compiles_is_not_a_given_one():
    text = TRAINER.replace("self.optimizer.", "self.model.optimizer.").replace(
        "        self.optimizer = optimizer\n", "        self.model.compile(optimizer='sgd')\n"
    )
    assert any("sets no policy" in one.what and one.blocks for one in migrated(text).findings)


def test_check_is_content_with_it(tmp_path):
    path = tmp_path / "engine.py"
    path.write_text(TASK, encoding="utf-8")
    done = CliRunner().invoke(app, ["migrate", "--check", str(path)], prog_name="unifiedamp")
    assert done.exit_code == 0
    assert f"{path}: works as it is" in done.stdout.replace("\n", "")
    folder = CliRunner().invoke(app, ["migrate", "--check", str(tmp_path)], prog_name="unifiedamp")
    assert folder.exit_code == 0
    assert "0 migrated, 1 that work as they are, 0 by hand" in folder.stdout.replace("\n", "")


EXPORT = """\
import tensorflow as tf
import performance

def export(make, path):
    tf.keras.mixed_precision.set_global_policy("float32")
    make().save(path)

def train(model, optimizer, data):
    performance.set_mixed_precision_policy("float16")
    model.compile(optimizer=optimizer, loss="mse")
    model.fit(data)
"""


def test_a_file_that_sets_float32_alone_works_as_it_is():
    done = migrated(EXPORT)
    assert (done.changed, done.status) == (False, "works as it is")
    assert [(one.line, "float32 is the one policy" in one.what) for one in done.findings] == [(5, True)]
    scaled = EXPORT + "    tf.keras.mixed_precision.LossScaleOptimizer(optimizer)\n"
    assert migrated(scaled).status != "works as it is"
