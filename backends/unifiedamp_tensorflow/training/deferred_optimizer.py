"""Optimizers given to a session without a model, for loops and ``model.fit`` in Keras 2's form.

They learn their variables when they are built, as Keras's own do, and join the session then.
``unifiedamp.compat.keras2`` uses them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from unifiedamp.backend import errors

from .._types import Gradient, Graph, NativeBase, Optimizer, Pairs, Tensor, Variable
from ..device.numerics import dense_values, with_values
from ..distributed.replicas import Replicas
from ..distributed.strategies import replicas_of
from ..internals import native
from ..precision.tapes import current_home
from . import optimizers
from .prepared_optimizer import PreparedOptimizer
from .scaler import DeviceScaler
from .steps import Steps
from .trained_variables import TrainedVariables


class DeferredSteps:
    """What a deferred optimizer remembers between the calls of one step.

    Args:
        scaler: the session's.
        replicas: where it trains.
        steps: ends its steps.
        after_step: called after each eager step.
    """

    def __init__(self, scaler: DeviceScaler, replicas: Replicas, steps: Steps, after_step: Callable[[], None]) -> None:
        self.scaler, self.replicas, self.steps, self.after_step = scaler, replicas, steps, after_step
        self.prepared: PreparedOptimizer | None = None
        self.loss_scaled = self.unscaled = False
        self.fitting = False
        self.losses: list[Tensor] = []
        self._finite: Tensor | None = None
        self._home: Graph | None = None

    def bind(self, outer: Optimizer, inner: Optimizer, variables: Iterable[Variable]) -> None:
        """Bind the variables that the optimizer was built for. Idempotent.

        Raises:
            PrepareError: they are under another strategy than the optimizer.
        """
        if self.prepared is not None:
            return
        known = {f"{index}.{getattr(v, 'path', v.name)}": v for index, v in enumerate(variables)}
        named = {name: native(variable) for name, variable in known.items()}
        if replicas_of(list(named.values()), []) != self.replicas:
            raise errors.PrepareError(
                "LossScaleOptimizer: the optimizer was not made under the strategy that mirrors the model; make both "
                "inside one 'with strategy.scope():'"
            )
        params = TrainedVariables(inner, named, known=known)
        self.prepared = PreparedOptimizer(outer, params, self.scaler, self.replicas)

    def scale(self, loss: Tensor | Callable[[], Tensor]) -> Any:
        """Return the scaled loss, float32; of a callable, a callable."""
        self.loss_scaled = True
        if callable(loss):
            return lambda: optimizers.scaled(loss(), self.scaler.scale)
        self.losses.append(loss)
        return optimizers.scaled(loss, self.scaler.scale)

    def unscale(self, gradients: Iterable[Gradient | None]) -> list[Gradient | None]:
        """Check the raw gradients for inf and nan, and return them divided by the scale; None stays None."""
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
        """Apply the gradients or skip them, and update the scale.

        Raises:
            StepOrderError: the loss was scaled by ``get_scaled_loss``, and its gradients were not unscaled.
        """
        assert self.prepared is not None
        scaled, finite = self.fitting, self._finite if self._home is current_home() else None
        if self.loss_scaled and not self.unscaled:
            raise optimizers.scaled_gradients()
        self.loss_scaled = self.unscaled = self.fitting = False
        self._finite = self._home = None
        self.steps.end_fit(self.prepared, pairs if finite is None else _marked(pairs, finite), scaled)
        losses, self.losses = self.losses, []
        self.steps.note_deferred(losses)
        if tf.executing_eagerly():
            self.after_step()


def _marked(pairs: Pairs, finite: Tensor) -> list[tuple[Gradient | None, Variable]]:
    """Return the pairs; where ``finite`` is false, the first gradient is nan: clipping must not hide an inf."""
    marked = list(pairs)
    for index, (gradient, variable) in enumerate(marked):
        if gradient is not None:
            values = dense_values(gradient)
            values += tf.cast(tf.where(finite, 0.0, float("nan")), values.dtype)
            marked[index] = (with_values(gradient, values), variable)
            break
    return marked


class _DeferredCalls(NativeBase):
    """The calls of Keras 2's ``LossScaleOptimizer``, over the prepared optimizer of either Keras.

    Args:
        inner: the optimizer that is applied.
        steps: the session's part in its steps.
    """

    def __init__(self, inner: Optimizer, steps: DeferredSteps) -> None:
        super().__init__(inner, steps.scaler)
        self._amp_steps = steps

    @property
    def dynamic(self) -> bool:
        """Whether the scale is updated."""
        return bool(self._amp_scaler.settings.kind == "dynamic")

    @property
    def loss_scale(self) -> Any:
        """The scale, a float32 tensor."""
        return self._amp_scaler.scale.read_value()

    def build(self, var_list: Iterable[Variable]) -> None:
        """Create the optimizer's variables, and bind it to the session."""
        variables = list(var_list)
        super().build(variables)
        self._amp_steps.bind(self, self.inner_optimizer, variables)

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Return the scaled loss; Keras 3's ``fit`` then applies scaled gradients."""
        self._amp_steps.fitting = True
        self._amp_steps.losses.append(loss)
        return optimizers.scaled(loss, self._amp_scaler.scale)

    def get_scaled_loss(self, loss: Tensor | Callable[[], Tensor]) -> Any:
        """Return float32(loss) times the scale (of a callable, a callable)."""
        return self._amp_steps.scale(loss)

    def get_unscaled_gradients(self, grads: Iterable[Gradient | None]) -> list[Gradient | None]:
        """Return gradients divided by the scale; None stays None."""
        return self._amp_steps.unscale(grads)

    def minimize(self, loss: Any, var_list: Any, tape: Any = None) -> Any:
        """Scale the loss (a tensor with its tape, or a callable), differentiate, apply or skip."""
        tape = tape or tf.GradientTape()
        with tape:
            scaled = self.get_scaled_loss(loss() if callable(loss) else loss)
        variables = list(var_list() if callable(var_list) else var_list)
        gradients = self.get_unscaled_gradients(tape.gradient(scaled, [native(v) for v in variables]))
        return self.apply_gradients(zip(gradients, variables, strict=True))

    def apply(self, grads: Sequence[Gradient | None], trainable_variables: Sequence[Variable] | None = None) -> None:
        """Apply gradients or skip them, as ``apply_gradients`` does."""
        variables = self._trainable_variables if trainable_variables is None else trainable_variables
        self.apply_gradients(zip(grads, variables, strict=True))

    def apply_gradients(self, grads_and_vars: Pairs, *_args: object, **_kwargs: object) -> Variable:
        """Apply unscaled gradients (scaled ones after ``scale_loss``), or skip them where one is inf or nan."""
        pairs = list(grads_and_vars)
        if self._amp_steps.prepared is None:
            with tf.init_scope():
                self.build([variable for _, variable in pairs])
        self._amp_steps.end(pairs)
        return self.iterations


@functools.cache
def deferred_class() -> type:
    """Return the class of deferred optimizers for the installed Keras."""
    base: Any = optimizers.prepared_class()

    class DeferredOptimizer(_DeferredCalls, base):
        __doc__ = _DeferredCalls.__doc__

    return optimizers.disguised(DeferredOptimizer, optimizers.NATIVE if optimizers.SCALES_LOSS else base.__mro__[1])
