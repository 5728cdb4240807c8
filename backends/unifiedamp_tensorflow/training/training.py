"""From ``prepare`` to the end of a step, and the state of the loss scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import tensorflow as tf

from unifiedamp.backend import (
    NonFiniteReport,
    Precision,
    ScaledLoss,
    ScaleState,
    SessionSpec,
    StepFollower,
    StepResult,
    Training,
    backward_in_context,
    errors,
    result,
)

from .. import patches
from .._types import Gradient, Model, Optimizer, Tensor
from ..precision.float8_scales import DelayedScaling
from .checks import not_in_trace, scalar_condition, scalar_loss
from .native_steps import NativeSteps
from .optimizers import forget_scaled
from .prepare import Preparation
from .prepared_objects import PreparedObjects
from .prepared_optimizer import PreparedOptimizer
from .scaled_loss import LossContext, TensorFlowScaledLoss
from .scaler import UNKNOWN, DeviceScaler
from .steps import Steps


class TensorFlowTraining(Training):
    """The training calls of one session.

    Args:
        spec: the session's.
        precision: its regions.
        prepared: its models and optimizers.
        preparation: prepares them.
        losses: what differentiating a loss needs.
        steps: ends windows.
        native_steps: reports steps that core does not see.
        float8: delayed scaling.

    Attributes:
        scaler: the loss scale on the device; None without one.
    """

    def __init__(
        self, spec: SessionSpec, precision: Precision, prepared: PreparedObjects, preparation: Preparation,
        losses: LossContext, steps: Steps, native_steps: NativeSteps,
        float8: DelayedScaling,
    ) -> None:  # fmt: skip
        self._spec, self._precision, self._prepared, self._preparation = spec, precision, prepared, preparation
        self._losses, self._steps, self._native_steps, self._float8 = losses, steps, native_steps, float8
        self.scaler = losses.scaler
        self._applied_before = self._skipped_before = 0

    # -- setting up ----------------------------------------------------------------------------------------------

    def is_model(self, obj: object) -> bool:
        return isinstance(obj, tf.keras.layers.Layer)

    def prepare(
        self, models: Sequence[Model], optimizers: Sequence[Optimizer]
    ) -> tuple[Sequence[Model], Sequence[Optimizer]]:
        return self._preparation.prepare(models, optimizers)

    # -- one step ------------------------------------------------------------------------------------------------

    def scale_loss(self, loss: Tensor, optimizers: Sequence[Optimizer]) -> AbstractContextManager[ScaledLoss]:
        found = [self._prepared.find(optimizer) for optimizer in optimizers]
        return TensorFlowScaledLoss(self._losses, scalar_loss(loss), found)

    def backward(self, closure: Callable[[], Tensor], optimizers: Sequence[Optimizer]) -> Tensor:
        self._losses.tapes.end_iteration()  # the closure computes the whole loss
        return backward_in_context(self._precision, self, closure, optimizers)

    def unscale(self, optimizer: Optimizer) -> None:
        """Sum the gradients over replicas, check them, then divide them by the scale."""
        self._prepared.buffer(optimizer, "unscale").unscale("unscale")

    def clip_grad_norm(self, optimizer: Optimizer, max_norm: float) -> Tensor:
        return self._prepared.buffer(optimizer, "clip_grad_norm").clip_norm(max_norm)

    def clip_grad_value(self, optimizer: Optimizer, clip_value: float) -> None:
        self._prepared.buffer(optimizer, "clip_grad_value").clip_value(clip_value)

    def gradients(self, optimizer: Optimizer) -> dict[str, Gradient]:
        """Return name → gradient; TensorFlow's tensors are immutable, so assign to the names of this dict."""
        return self._prepared.buffer(optimizer, "gradients").collect("gradients")

    def step(self, optimizer: Optimizer, update_scale: bool) -> StepResult:
        buffer, prepared = self._prepared.buffer(optimizer, "step"), self._prepared.find(optimizer)
        self._check_counted()
        buffer.fill_in("step")
        if buffer.collect("step"):
            outcome = self._steps.end(prepared, update=update_scale, alone=len(self._prepared.optimizers) == 1)
        else:
            outcome = self._no_gradients(prepared, update_scale)
        buffer.clear()
        forget_scaled(prepared.outer)
        if update_scale:
            self._losses.tapes.drop()
        return outcome

    def _check_counted(self) -> None:
        tracing = self._losses.tracing
        if self._spec.schedule is not None and tracing.depth and tracing.runs_once():
            raise errors.UnsupportedError(
                "amp.step: in a loop, a branch or a tf.function of a compiled step no Python runs for each iteration, "
                "so the iterations of the session's schedule cannot be counted; call the compiled step for each of "
                "them, or loop over them by Python's range"
            )

    def _no_gradients(self, prepared: PreparedOptimizer, update_scale: bool) -> StepResult:
        names = prepared.params.names
        self._spec.warn(
            f"amp.step: none of the {len(names)} parameters of this {type(prepared.inner).__name__} received a "
            f"gradient (first: {errors.first_names(names)}); nothing was applied and the scale stays",
            errors.StepWarning,
        )
        if update_scale:
            self.update_scale()
        if not tf.executing_eagerly():
            return not_in_trace()
        scale = self.read_state().scale
        return StepResult.of(False, False, result.NO_GRADIENTS, scale, scale)

    def skip_if(self, condition: bool | Tensor, optimizers: Sequence[Optimizer]) -> None:
        buffers = [self._prepared.buffer(optimizer, "skip_if") for optimizer in optimizers]
        holds = tf.constant(condition) if isinstance(condition, bool) else scalar_condition(condition)
        for buffer in buffers:
            buffer.drop_if(holds)

    def update_scale(self) -> None:
        self._float8.end_iteration()
        self._losses.tapes.end_iteration()
        if self.scaler is not None and len(self._prepared.optimizers) > 1:
            self._losses.distributed.replicas.once(self.scaler.update)

    def zero_grad(self, optimizer: Optimizer) -> None:
        self._prepared.buffer(optimizer, "discard_step").clear()
        self._float8.discard()
        prepared = self._prepared.find(optimizer)
        prepared.restart_fit()
        prepared.accept_parameters()
        self._forget_regions([optimizer])

    def end_micro_batch(self) -> None:
        self._losses.tapes.drop()

    def _all(self, optimizers: Sequence[Optimizer]) -> bool:
        return len(optimizers) == len(self._prepared.optimizers)

    def _forget_regions(self, optimizers: Sequence[Optimizer]) -> None:
        """Forget what was recorded, unless other optimizers' losses may come from it."""
        if self._all(optimizers):
            self._losses.tapes.drop()

    def rollback(self, optimizers: Sequence[Optimizer]) -> bool:
        found = [self._prepared.find(optimizer) for optimizer in optimizers]
        for prepared in found:
            prepared.clear()
        self._forget_regions(optimizers)
        with tf.init_scope():
            self._float8.discard()
            if self.scaler is not None and not _on_a_replica():
                self._forget_findings(self.scaler, found)
        partly = [prepared.partly_updated() for prepared in found]
        return any(partly)

    def _forget_findings(self, scaler: DeviceScaler, found: Sequence[PreparedOptimizer]) -> None:
        """Leave what steps of these optimizers found out of the next update of the scale."""
        if len(found) == len(self._prepared.optimizers):
            scaler.forget()
            return
        for prepared in found:
            scaler.forget_step(prepared.number)

    # -- state ---------------------------------------------------------------------------------------------------

    def read_state(self) -> ScaleState:
        if self.scaler is not None:
            return self.scaler.read()
        steps = sum(_steps_of(prepared) - prepared.steps_before for prepared in self._prepared.optimizers)
        return ScaleState(applied_steps=self._applied_before + steps, skipped_steps=self._skipped_before)

    def write_state(self, state: ScaleState) -> None:
        for prepared in self._prepared.optimizers:
            prepared.restart_fit()
            prepared.accept_parameters()
        if self.scaler is not None:
            self.scaler.write(state)
            return
        for prepared in self._prepared.optimizers:
            prepared.steps_before = _steps_of(prepared)
        self._applied_before, self._skipped_before = state.applied_steps, state.skipped_steps

    def nonfinite_report(self) -> NonFiniteReport:
        if self.scaler is None:
            return NonFiniteReport()
        optimizers, last = self._prepared.optimizers, int(self.scaler.skipped_by.numpy())
        names = tuple(optimizers[last].nonfinite_names() if optimizers else ())
        finite = int(self.scaler.loss_finite.numpy())
        return NonFiniteReport(names, None if finite == UNKNOWN else bool(finite))

    def on_native_steps(
        self, after_step: Callable[..., bool], poll: Callable[[], None], observed: Callable[[], bool]
    ) -> None:
        self._native_steps.start(after_step, poll, observed)

    def follow_native_steps(self, follower: StepFollower) -> None:
        self._native_steps.follow(follower)

    def run_uncompiled(self, enabled: bool) -> None:
        patches.run_functions_eagerly(enabled)

    def call_from_trace(self, fn: Callable[..., None], tensors: Sequence[Tensor]) -> None:
        self._native_steps.call_from_trace(fn, tensors)


def _on_a_replica() -> bool:
    """Whether this is one replica's thread: an assignment there waits for the others, which may have stopped."""
    return tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()


def _steps_of(prepared: PreparedOptimizer) -> int:
    return int(prepared.inner.iterations.numpy())
