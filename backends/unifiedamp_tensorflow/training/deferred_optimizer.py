"""Optimizers given to a session without a model, for loops and ``model.fit`` in Keras 2's form.

They learn their variables when they are built, as Keras's own do, and are bound to the session then.
``unifiedamp.compat.keras2`` is written over this room.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from unifiedamp.backend import errors

from ..distributed.replicas import IN_STEP, Alone, Mirrored, replicas_of
from ..precision.layers import native
from . import optimizers
from .prepared_optimizer import Bound
from .scaler import DeviceScaler, dense_values
from .steps import Steps
from .tapes import current_home

Pairs = Iterable[tuple[Any, Any]]


def replicas_here() -> Alone:
    """Return where an optimizer that is made here will train: under the active strategy, if there is one."""
    strategy = tf.distribute.get_strategy()
    return Mirrored(strategy) if isinstance(strategy, IN_STEP) else Alone()


class Loop:
    """What a late optimizer remembers between the calls of one step.

    Args:
        scaler: the session's.
        replicas: where it trains.
        steps: ends its steps.
        after_step: called after each eager step.
    """

    def __init__(self, scaler: DeviceScaler, replicas: Alone, steps: Steps, after_step: Callable[[], None]) -> None:
        self.scaler, self.replicas, self.steps, self.after_step = scaler, replicas, steps, after_step
        self.bound: Bound | None = None
        self.asked = self.unscaled = False
        self.fitting = False
        self._finite: Any = None
        self._home: Any = None

    def bind(self, outer: Any, inner: Any, variables: Iterable[Any]) -> None:
        """Take over the variables that the optimizer was built for; again is harmless.

        Raises:
            PrepareError: they are not where the optimizer was made.
        """
        if self.bound is not None:
            return
        named = {f"{index}.{getattr(v, 'path', v.name)}": native(v) for index, v in enumerate(variables)}
        if replicas_of(list(named.values()), []) != self.replicas:
            raise errors.PrepareError(
                "LossScaleOptimizer: the optimizer was not made under the strategy that mirrors the model; make both "
                "inside one 'with strategy.scope():'"
            )
        self.bound = Bound(outer, inner, named, 1, self.scaler, self.replicas)

    def scale(self, loss: Any) -> Any:
        """Return the scaled loss, float32; of a callable, a callable."""
        self.asked = True
        if callable(loss):
            return lambda: optimizers.scaled(loss(), self.scaler.scale)
        return optimizers.scaled(loss, self.scaler.scale)

    def unscale(self, gradients: Iterable[Any]) -> list[Any]:
        """Decide finiteness on raw gradients, and return them divided by the scale; None stays None."""
        gradients = list(gradients)
        present = [gradient for gradient in gradients if gradient is not None]
        if present:
            finite = tf.reduce_all(self.scaler.finite_flags(present))
            known = self._finite is not None and self._home is current_home()
            self._finite, self._home = (tf.logical_and(self._finite, finite) if known else finite), current_home()
        self.unscaled = True
        values = iter(self.scaler.unscale(present))
        return [None if gradient is None else next(values) for gradient in gradients]

    def end(self, pairs: Pairs) -> None:
        """Apply the gradients or skip them, and move the scale.

        Raises:
            StepOrderError: the loss was scaled by ``get_scaled_loss``, and its gradients were not unscaled.
        """
        assert self.bound is not None
        scaled, finite = self.fitting, self._finite if self._home is current_home() else None
        if self.asked and not self.unscaled:
            raise errors.StepOrderError(
                "apply_gradients: the loss was scaled by get_scaled_loss; give the gradients to get_unscaled_gradients "
                "before they are applied"
            )
        self.asked = self.unscaled = self.fitting = False
        self._finite = self._home = None
        self.steps.end_fit(self.bound, pairs if finite is None else _marked(pairs, finite), scaled)
        if tf.executing_eagerly():
            self.after_step()


def _marked(pairs: Pairs, finite: Any) -> list[tuple[Any, Any]]:
    """Return the pairs; where ``finite`` is false, the first gradient is nan: clipping must not hide an inf."""
    marked = list(pairs)
    for index, (gradient, variable) in enumerate(marked):
        if gradient is not None:
            values = dense_values(gradient)
            values += tf.cast(tf.where(finite, 0.0, float("nan")), values.dtype)
            if isinstance(gradient, tf.IndexedSlices):
                values = tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
            marked[index] = (values, variable)
            break
    return marked


class _LateCalls:
    """The calls of Keras 2's ``LossScaleOptimizer``, over the prepared optimizer of either Keras.

    Args:
        inner: the optimizer that is applied.
        loop: the session's part in its steps.
    """

    def __init__(self, inner: Any, loop: Loop) -> None:
        super().__init__(inner, loop.scaler)
        self._amp_loop = loop

    @property
    def dynamic(self) -> bool:
        """Whether the scale moves."""
        return bool(self._amp_scaler.settings.kind == "dynamic")

    @property
    def loss_scale(self) -> Any:
        """The scale, a float32 tensor."""
        return self._amp_scaler.scale.read_value()

    def build(self, var_list: Any) -> None:
        """Make the optimizer's variables, and bind it to the session."""
        variables = list(var_list)
        super().build(variables)
        self._amp_loop.bind(self, self.inner_optimizer, variables)

    def scale_loss(self, loss: Any) -> Any:
        """Return the scaled loss; Keras 3's ``fit`` then applies scaled gradients."""
        self._amp_loop.fitting = True
        return optimizers.scaled(loss, self._amp_scaler.scale)

    def get_scaled_loss(self, loss: Any) -> Any:
        """Return float32(loss) times the scale (of a callable, a callable)."""
        return self._amp_loop.scale(loss)

    def get_unscaled_gradients(self, grads: Any) -> list[Any]:
        """Return gradients divided by the scale; None stays None."""
        return self._amp_loop.unscale(grads)

    def minimize(self, loss: Any, var_list: Any, tape: Any = None) -> Any:
        """Scale the loss (a tensor with its tape, or a callable), differentiate, apply or skip."""
        tape = tape or tf.GradientTape()
        with tape:
            scaled = self.get_scaled_loss(loss() if callable(loss) else loss)
        variables = list(var_list() if callable(var_list) else var_list)
        gradients = self.get_unscaled_gradients(tape.gradient(scaled, [native(v) for v in variables]))
        return self.apply_gradients(zip(gradients, variables, strict=True))

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Apply gradients or skip them, as ``apply_gradients`` does."""
        variables = self._trainable_variables if trainable_variables is None else trainable_variables
        self.apply_gradients(zip(grads, variables, strict=True))

    def apply_gradients(self, grads_and_vars: Any, *_args: Any, **_kwargs: Any) -> Any:
        """Apply unscaled gradients (scaled ones after ``scale_loss``), or skip them where one is inf or nan."""
        pairs = list(grads_and_vars)
        if self._amp_loop.bound is None:
            with tf.init_scope():
                self.build([variable for _, variable in pairs])
        self._amp_loop.end(pairs)
        return self.iterations


@functools.cache
def late_class() -> type:
    """Return the class of late optimizers for the Keras that is there."""
    base: Any = optimizers.prepared_class()

    class LateOptimizer(_LateCalls, base):  # type: ignore[misc]
        __doc__ = _LateCalls.__doc__

    return optimizers.disguised(LateOptimizer, optimizers.NATIVE if optimizers.SCALES_LOSS else base.__mro__[1])
