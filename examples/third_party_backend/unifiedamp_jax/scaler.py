"""The loss scale on the device: pure functions over arrays, the same eager and inside a compiled step."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unifiedamp.backend import LossScale, ScaleState

Grads = dict[str, jax.Array]


@partial(jax.tree_util.register_dataclass, data_fields=["values", "counts"], meta_fields=[])
@dataclass
class Averaged:
    """An average of a model's weights.

    Attributes:
        values: name → float32 array.
        counts: place of an optimizer → how many of its steps moved it; -1 where it begins with the weights before
            the next applied step.
    """

    values: dict[str, jax.Array]
    counts: dict[int, jax.Array]


@partial(
    jax.tree_util.register_dataclass, data_fields=["numbers", "buffers", "found", "judged", "averages"], meta_fields=[]
)
@dataclass
class Carry:
    """All that a session carries from step to step, a pytree: what goes into a compiled step and comes out of it.

    Attributes:
        numbers: the fields of ``ScaleState``, as arrays.
        buffers: one per optimizer.
        found: whether a step since the last update of the scale was not finite; None when there was no step.
        judged: whether one of these steps was not dropped by a condition alone; None where there was no condition.
        averages: key of an average → its arrays.
    """

    numbers: dict[str, jax.Array]
    buffers: list[GradientBuffer] = field(default_factory=list)
    found: jax.Array | None = None
    judged: jax.Array | None = None
    averages: dict[int, Averaged] = field(default_factory=dict)

    def note(self, found: jax.Array, dropped: jax.Array | None) -> None:
        """Note what a step found, and whether a condition alone dropped it; None where there was no condition."""
        if dropped is not None or self.judged is not None:
            before = jnp.array(self.found is not None) if self.judged is None else self.judged
            self.judged = before | (jnp.array(True) if dropped is None else ~dropped)
        self.found = found if self.found is None else self.found | found


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["grads", "bad", "loss_finite", "condition", "blame", "blamed_loss_finite"],
    meta_fields=[],
)
@dataclass
class GradientBuffer:
    """One optimizer's gradients, until its step.

    Attributes:
        grads: name → sum of gradients; scaled until ``unscale``.
        bad: which of them (in the order of sorted names) are not finite; None until ``unscale``.
        loss_finite: whether all unscaled losses of the buffer were finite; None when there was none.
        condition: whether the step is dropped, whatever it finds; None for no.
        blame: ``bad`` of the last skipped step, if it was this optimizer's; else all False.
        blamed_loss_finite: ``loss_finite`` of that step.
    """

    blame: jax.Array
    blamed_loss_finite: jax.Array = field(default_factory=lambda: jnp.array(True))
    grads: Grads = field(default_factory=dict)
    bad: jax.Array | None = None
    loss_finite: jax.Array | None = None
    condition: jax.Array | None = None

    def add(self, grads: Grads, loss: jax.Array) -> None:
        """Add the gradients of one more loss."""
        self.grads = _added(self.grads, grads) if self.grads else grads
        finite = jnp.isfinite(loss)
        self.loss_finite = finite if self.loss_finite is None else self.loss_finite & finite

    def clear(self) -> None:
        """Empty the buffer; what the last skip left behind stays."""
        self.grads, self.bad, self.loss_finite, self.condition = {}, None, None, None


def to_arrays(state: ScaleState) -> dict[str, jax.Array]:
    """Return the numbers on the device."""
    scale = jnp.asarray(state.scale, jnp.float32)
    names = [name for name in ScaleState.__dataclass_fields__ if name != "scale"]
    return {"scale": scale, **{name: jnp.asarray(getattr(state, name), jnp.int32) for name in names}}


def to_state(numbers: dict[str, jax.Array]) -> ScaleState:
    """Read the numbers; waits for the device."""
    return ScaleState(**{name: value.item() for name, value in jax.device_get(numbers).items()})


def updated(settings: LossScale, numbers: dict[str, jax.Array], found: jax.Array) -> dict[str, jax.Array]:
    """Return the numbers after an iteration: ``LossScale.next_state``, for arrays."""
    # In float64, and rounded once, as the reference does: 1.1 is no float32.
    with jax.enable_x64(True):
        factors = np.array([settings.growth_factor, settings.backoff_factor], np.float64)
        bounds = np.array(settings.scale_bounds, np.float32)
        counts = np.array([settings.growth_interval, settings.hysteresis], np.int32)
        return _updated(numbers, found, factors, bounds, counts, settings.keeps_hysteresis)


@jax.jit
def _updated(
    numbers: dict[str, jax.Array], found: Any, factors: Any, bounds: Any, counts: Any, keeps: Any
) -> dict[str, jax.Array]:
    scale = numbers["scale"]
    products = (scale.astype(jnp.float64) * factors).astype(jnp.float32)
    bad = jnp.where(found, numbers["bad_steps"] + 1, 0)
    good = jnp.where(found, 0, numbers["good_steps"] + 1)
    grows = good >= counts[0]
    up = jnp.where(grows, jnp.minimum(bounds[1], products[0]), scale)
    spent = jnp.where(found, jnp.minimum(numbers["hysteresis_steps"] + 1, counts[1]), numbers["hysteresis_steps"])
    down = jnp.where(jnp.where(keeps, spent, bad) >= counts[1], jnp.maximum(bounds[0], products[1]), scale)
    good = jnp.where(grows, 0, good)
    spent = jnp.where(keeps & ~grows, spent, 0)
    scale = jnp.where(found, down, up)
    return {**numbers, "scale": scale, "good_steps": good, "bad_steps": bad, "hysteresis_steps": spent}


@jax.jit
def counted(numbers: dict[str, jax.Array], found: jax.Array) -> dict[str, jax.Array]:
    """Count a step as applied or skipped."""
    skipped = found.astype(jnp.int32)
    return {
        **numbers,
        "applied_steps": numbers["applied_steps"] + 1 - skipped,
        "skipped_steps": numbers["skipped_steps"] + skipped,
    }


@jax.jit
def selected(condition: jax.Array, one: dict[str, jax.Array], other: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Return the numbers ``one`` where a condition holds, else ``other``."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)


@jax.jit
def unscaled(grads: Grads, scale: jax.Array) -> tuple[Grads, jax.Array]:
    """Return true gradients, and which of the raw ones (by sorted name) hold inf or nan."""
    bad = jnp.stack([~jnp.isfinite(grads[name]).all() for name in sorted(grads)])
    return {name: (_widened(grad) / scale).astype(grad.dtype) for name, grad in grads.items()}, bad


def _widened(grad: jax.Array) -> jax.Array:
    return grad.astype(jnp.promote_types(grad.dtype, jnp.float32))


@jax.jit
def clipped_norm(grads: Grads, max_norm: float) -> tuple[Grads, jax.Array]:
    """Return gradients whose 2-norm, taken over all of them, is at most ``max_norm``, and the norm before."""
    wide = [_widened(grad) for grad in grads.values()]
    largest = jnp.max(jnp.stack([jnp.abs(grad).max() for grad in wide]))
    unit = jnp.where(largest > 2.0**60, largest, 1.0)  # their squares would overflow
    norm = jnp.sqrt(sum(jnp.square(grad / unit).sum() for grad in wide)) * unit
    factor = jnp.where(norm > max_norm, max_norm / norm, 1.0)
    return {name: (grad * factor).astype(grad.dtype) for name, grad in grads.items()}, norm


@jax.jit
def clipped_value(grads: Grads, limit: float) -> Grads:
    """Return gradients with each element in [-limit, limit]."""
    return {name: jnp.clip(grad, -limit, limit).astype(grad.dtype) for name, grad in grads.items()}


@jax.jit
def _added(one: Grads, two: Grads) -> Grads:
    return jax.tree.map(jnp.add, one, two)


def blame(buffers: list[GradientBuffer], culprit: GradientBuffer, found: Any) -> None:
    """Where ``found``, note on the device which gradients of ``culprit`` were to blame, and no others."""
    for buffer in buffers:
        bad = culprit.bad if buffer is culprit else jnp.zeros_like(buffer.blame)
        buffer.blame = jnp.where(found, bad, buffer.blame)
        if culprit.loss_finite is not None:
            buffer.blamed_loss_finite = jnp.where(found, culprit.loss_finite, buffer.blamed_loss_finite)
