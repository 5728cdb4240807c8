"""Keras code, migrated, gives the losses that it gave."""

from __future__ import annotations

import pytest

tf = pytest.importorskip("tensorflow")
from migrating import identifiers, migrated, old_text, run  # noqa: E402

# The same graph on the same numbers; only the factor 2**15, exact in floating point, goes in at another place.
SAME = {"rel": 1e-6, "abs": 1e-7}
OLD_NAMES = {"LossScaleOptimizer", "get_scaled_loss", "get_unscaled_gradients", "apply_gradients", "GradientTape"}
needs_keras2 = pytest.mark.skipif(
    not hasattr(tf.keras.mixed_precision.LossScaleOptimizer, "get_scaled_loss"), reason="Keras 3 dropped what it calls"
)
pytestmark = [
    pytest.mark.filterwarnings("ignore::unifiedamp.errors.PolicyWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def _policy_put_back():
    found = tf.keras.mixed_precision.global_policy()
    yield
    tf.keras.mixed_precision.set_global_policy(found)


@pytest.mark.parametrize("name", [pytest.param("keras_loop", marks=needs_keras2), "keras_fit"])
def test_the_losses_are_those_of_the_old_code(name):
    text = migrated(old_text(name)).after.decode()
    assert not identifiers(text) & OLD_NAMES
    old = run(old_text(name), 4)
    tf.keras.mixed_precision.set_global_policy("float32")
    new = run(text, 4)
    assert old[-1] < old[0]
    assert new == pytest.approx(old, **SAME)


def test_a_loop_for_keras_2_runs_on_any_keras():
    losses = run(migrated(old_text("keras_loop")).after.decode(), 4)
    assert losses == sorted(losses, reverse=True)
