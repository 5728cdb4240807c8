"""Keras code, migrated, gives the losses that it gave; TensorFlow's graph rewrite too."""

from __future__ import annotations

import random

import pytest

tf = pytest.importorskip("tensorflow")
from migrating import identifiers, listing, migrated, old_text, replaced, run  # noqa: E402

KERAS_2 = hasattr(tf.keras.mixed_precision.LossScaleOptimizer, "get_scaled_loss")
# The same operations on the same numbers: what may differ is float32 rounding, where a graph is put together otherwise.
SAME = {"rel": 1e-6, "abs": 1e-7}
OLD_NAMES = {"LossScaleOptimizer", "get_scaled_loss", "get_unscaled_gradients", "apply_gradients", "GradientTape"}
OLD_NAMES |= {"enable_mixed_precision_graph_rewrite", "set_policy", "set_global_policy"}

# What Keras 3 calls the same. Its optimizer takes scaled gradients.
KERAS_3 = [
    ("optimizer.get_scaled_loss", "optimizer.scale_loss"),
    ("optimizer.get_unscaled_gradients(scaled_gradients)", "scaled_gradients"),
]
# TensorFlow 2.4 renamed the experimental calls.
RENAMED = [
    ("from tensorflow.keras.mixed_precision import experimental as mixed_precision",
     "from tensorflow.keras import mixed_precision"),
    ('mixed_precision.Policy("mixed_float16", loss_scale=128)', '"mixed_float16"'),
    ("mixed_precision.set_policy", "mixed_precision.set_global_policy"),
    ("keras.optimizers.SGD(0.5)",
     "mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=128, dynamic_growth_steps=2000)"),
]  # fmt: skip
# Without a GPU the rewrite converts nothing, and the scale, a power of two, changes no digit.
OFF = [("    opt = tf.train.experimental.enable_mixed_precision_graph_rewrite(opt)\n", "")]
OFF_V1 = [("        opt = tf.compat.v1.mixed_precision.enable_mixed_precision_graph_rewrite(opt)\n", "")]
ON_CPU = [('"mixed_float16"', '"float32"')]

pytestmark = [
    pytest.mark.usefixtures("policy_put_back"),
    pytest.mark.filterwarnings("ignore::unifiedamp.errors.PolicyWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def seed() -> None:
    """Seed what Keras draws weights from; ``set_random_seed`` would leave Keras 2 warning ever after."""
    random.seed(0)
    tf.random.set_seed(0)


def compare(old: str, new: str) -> None:
    seed()
    was = run(old, 4)
    tf.keras.mixed_precision.set_global_policy("float32")
    seed()
    assert was[-1] < was[0]
    assert run(new, 4) == pytest.approx(was, **SAME)


def new_text(text: str) -> str:
    new = migrated(text).after.decode()
    assert not identifiers(new) & OLD_NAMES
    return new


@pytest.mark.parametrize("text", [old_text("keras_loop"), listing("keras2_loop")], ids=["clipped", "listing"])
def test_a_loop_has_the_losses_of_the_old_code(text):
    old = text if KERAS_2 else replaced(text, *KERAS_3)
    if not KERAS_2 and "clip_by_global_norm" in text:
        old = replaced(old, ("(gradients, 0.5)", "([g / 2.0**15 for g in gradients], 0.5)"))
        old = replaced(old, ("zip(gradients,", "zip([g * 2.0**15 for g in gradients],"))
    compare(old, new_text(text))


def test_fit_has_the_losses_of_the_old_code():
    compare(old_text("keras_fit"), new_text(old_text("keras_fit")))


def test_experimental_policies_have_the_losses_of_the_old_code():
    text = listing("keras2_experimental")
    compare(replaced(text, *RENAMED), new_text(text))


def test_the_rewrite_has_the_losses_of_the_old_code():
    text = listing("tf_rewrite")
    compare(replaced(text, *OFF), replaced(new_text(text), *ON_CPU))


def test_session_training_has_the_losses_of_the_old_code():
    text = listing("tf_rewrite_v1")
    compare(replaced(text, *OFF_V1), replaced(new_text(text), *ON_CPU))


def test_a_model_called_without_a_mode_is_pointed_at():
    done = migrated(listing("keras2_loop"))
    (found,) = done.findings
    assert listing("keras2_loop").splitlines()[found.line - 1].strip() == "predictions = model(x)"
    assert "training=" in found.what


LOOP = old_text("keras_loop")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (("        return loss\n", "        return loss, gradients\n"), "return loss, gradients"),
        (("gradients, _ = tf.clip_by_global_norm(gradients, 0.5)", "gradients = edit(gradients)"), "edit(gradients)"),
        (("tape.gradient(scaled_loss, model.trainable_variables)", "tape.gradient(scaled_loss, some)"), "some"),
        (("optimizer.get_scaled_loss(loss)", "optimizer.get_scaled_loss()"), "optimizer.get_scaled_loss()"),
        (
            ("optimizer.get_unscaled_gradients(scaled_gradients)", "optimizer.get_unscaled_gradients()"),
            "optimizer.get_unscaled_gradients()",
        ),
        (("mixed_precision.set_global_policy(policy)", ""), "sets no policy"),
        (("set_global_policy(policy)", "set_global_policy(make())"), "make()"),
        (
            ("optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)", "del rng"),
            "no single place where optimizer is made",
        ),
    ],
)
def test_what_is_not_understood_stays_with_all_that_belongs_to_it(change, what):
    text = replaced(LOOP, change)
    if what.startswith("no single"):
        text = replaced(text, ("    optimizer = mixed_precision.LossScaleOptimizer(optimizer)\n", ""))
    done = migrated(text)
    assert not done.changed
    (found,) = done.findings
    assert found.blocks
    assert what in found.what
