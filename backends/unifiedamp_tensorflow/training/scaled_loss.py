"""What ``amp.scale_loss`` gives: a handle on the scaled loss, which differentiates it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from unifiedamp.backend import errors

from .prepared_optimizer import Bound

if TYPE_CHECKING:
    from ..backend import TensorFlowBackend


class Handle:
    """What ``with amp.scale_loss(...) as scaled_loss`` gives; it is its own context.

    Args:
        backend: the session's.
        loss: the unscaled loss, a scalar.
        bounds: the optimizers that get gradients.
    """

    __slots__ = ("_backend", "_bounds", "_loss")

    def __init__(self, backend: TensorFlowBackend, loss: Any, bounds: Sequence[Bound]) -> None:
        self._backend, self._loss, self._bounds = backend, loss, bounds

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *exception: Any) -> None:
        pass

    @property
    def value(self) -> Any:
        """The scaled loss, float32."""
        seed = self._seed()
        loss = tf.cast(self._loss, tf.float32)
        return loss if seed is None else loss * seed

    def backward(self) -> None:
        """Add the gradients of the scaled loss to the window of each optimizer named.

        Raises:
            LossError: the loss was not computed under a tape of this session, or depends on no parameter.
        """
        backend, loss = self._backend, self._loss
        backend.replicas.check("amp.scale_loss")
        self._check_window()
        wanted = [bound.training() for bound in self._bounds]
        variables = [variable for named in wanted for variable in named.values()]
        seed = self._seed()
        seed = seed if seed is None else tf.cast(seed, loss.dtype)
        with backend.tuned.switches:
            gradients = backend.tapes.gradient(loss, variables, seed)
        self._check_connected(gradients)
        left = iter(gradients or [None] * len(variables))
        for bound, named in zip(self._bounds, wanted, strict=True):
            bound.window().add({name: next(left) for name in named}, loss)

    def _seed(self) -> Any:
        """Return what the loss is multiplied by, or None for 1."""
        steps, scaler = self._backend.spec.accumulate_steps, self._backend.scaler
        if scaler is None:
            return None if steps == 1 else tf.constant(1.0 / steps, tf.float32)
        return scaler.scale.read_value() if steps == 1 else scaler.scale / float(steps)

    def _check_window(self) -> None:
        steps = self._backend.spec.accumulate_steps
        if tf.executing_eagerly():
            self._backend.mode.on_eager_backward()
        elif steps > 1 and not self._backend.in_compiled:
            raise errors.StepOrderError(
                f"amp.scale_loss: accumulate_steps={steps} inside a tf.function of your own, "
                "whose Python runs once: each call would be the first micro-batch again; use amp.compile in its place"
            )

    def _check_connected(self, gradients: Sequence[Any] | None) -> None:
        unconnected = gradients is None or all(gradient is None for gradient in gradients)
        if unconnected and not self._backend.tapes.knows(self._loss):
            raise errors.LossError(
                "amp.scale_loss: the loss depends on no trainable variable used inside 'with amp.autocast():'; compute "
                "model outputs and loss inside the region, by TensorFlow operations, and scale it before the next step"
            )
