"""``amp.scale_loss``: the scaled loss, and its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow as tf

from unifiedamp.backend import Switches, errors

from .._types import Gradient, Tensor
from ..distributed.distributed import TensorFlowDistributed
from ..precision.modes import Mode
from ..precision.tapes import KEPT_REGIONS, Tapes
from .optimizers import note_scaled
from .prepared_optimizer import PreparedOptimizer
from .scaler import DeviceScaler
from .step_tracing import StepTracing


@dataclass(frozen=True)
class LossContext:
    """What differentiating a loss needs of the session.

    Attributes:
        distributed: its replicas.
        mode: how TensorFlow mixes precision.
        tapes: its gradient tapes.
        switches: process-wide settings that hold while gradients are computed.
        scaler: its loss scale; None without one.
        tracing: whether a compiled step is being traced.
        accumulate_steps: micro-batches per window.
        warn: warns, or raises in a strict session.
    """

    distributed: TensorFlowDistributed
    mode: Mode
    tapes: Tapes
    switches: Switches
    scaler: DeviceScaler | None
    tracing: StepTracing
    accumulate_steps: int
    warn: Callable[[str, type[errors.AmpWarning]], None]


class TensorFlowScaledLoss:
    """What ``with amp.scale_loss(...) as scaled_loss`` yields; it is its own context.

    Args:
        context: the session's part.
        loss: the unscaled loss, a scalar.
        optimizers: get the gradients.
    """

    __slots__ = ("_context", "_loss", "_optimizers")

    def __init__(self, context: LossContext, loss: Tensor, optimizers: Sequence[PreparedOptimizer]) -> None:
        self._context, self._loss, self._optimizers = context, loss, optimizers

    def __enter__(self) -> TensorFlowScaledLoss:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    @property
    def value(self) -> Tensor:
        """The scaled loss, float32. Its gradients may be given to the prepared optimizers, as Keras's loops do."""
        seed = self._seed()
        for prepared in self._optimizers:
            note_scaled(prepared.outer, self._loss)
        loss = tf.cast(self._loss, tf.float32)
        return loss if seed is None else loss * seed

    def backward(self, retain_graph: bool = False) -> None:
        """Add the gradients of the scaled loss to the window of each optimizer named.

        Args:
            retain_graph: has no effect: the tape is kept until the iteration ends.

        Raises:
            LossError: the loss was not computed under a tape of this session, or depends on no parameter.
        """
        context, loss = self._context, self._loss
        context.distributed.replicas.check("amp.scale_loss")
        self._check_window()
        self._check_regions()
        context.tracing.enter_program()
        wanted = [prepared.params.training() for prepared in self._optimizers]
        variables = [variable for named in wanted for variable in named.values()]
        seed = self._seed()
        seed = seed if seed is None else tf.cast(seed, loss.dtype)
        with context.switches:
            gradients = context.tapes.gradient(loss, variables, seed)
        self._check_connected(gradients)
        left = iter(gradients or [None] * len(variables))
        for prepared, named in zip(self._optimizers, wanted, strict=True):
            prepared.buffer().add({name: next(left) for name in named}, loss)

    def _seed(self) -> Tensor | None:
        """Return what the loss is multiplied by; None for 1."""
        steps, scaler = self._context.accumulate_steps, self._context.scaler
        if scaler is None:
            return None if steps == 1 else tf.constant(1.0 / steps, tf.float32)
        return scaler.scale.read_value() if steps == 1 else scaler.scale / float(steps)

    def _check_window(self) -> None:
        steps = self._context.accumulate_steps
        if tf.executing_eagerly():
            self._context.mode.on_eager_backward()
        elif steps > 1 and not self._context.tracing.depth:
            raise errors.StepOrderError(
                f"amp.scale_loss: accumulate_steps={steps} inside your own tf.function, "
                "whose Python runs once: each call would be the first micro-batch again; use amp.compile in its place"
            )
        elif steps > 1 and self._context.tracing.runs_once():
            raise errors.StepOrderError(
                f"amp.scale_loss: accumulate_steps={steps} inside a loop, a branch or a tf.function of the compiled "
                "step, whose Python runs once: each run would be the same micro-batch of its window; call the compiled "
                "step for each micro-batch, or loop over them by Python's range"
            )

    def _check_regions(self) -> None:
        recording = self._context.tapes.here()
        if recording is not None and recording.forgot:
            self._context.warn(
                f"amp.scale_loss: more than {KEPT_REGIONS} autocast regions were entered since the last step, and the "
                "first ones are no longer recorded: this loss gets no gradients through what was computed in them. "
                "Compute a loss in fewer regions, or compile the step; evaluate inside 'with amp.inference():'",
                errors.StepWarning,
            )

    def _check_connected(self, gradients: Sequence[Gradient | None] | None) -> None:
        unconnected = gradients is None or all(gradient is None for gradient in gradients)
        if unconnected and not self._context.tapes.knows(self._loss):
            raise errors.LossError(
                "amp.scale_loss: the loss depends on no trainable variable used inside 'with amp.autocast():'; compute "
                "model outputs and loss inside the region, by TensorFlow operations, and scale it before the next step"
            )
