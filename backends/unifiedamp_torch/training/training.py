"""The role of training: from ``prepare`` to the end of a step, and the state of the loss scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch

from unifiedamp.backend import (
    NonFiniteReport,
    Precision,
    ScaleState,
    SessionSpec,
    StepResult,
    Switches,
    Training,
    backward_in_context,
    errors,
    result,
)

from ..distributed.discards import meet_to_discard
from ..distributed.late import refuse_late_sharding
from ..precision.emulation import op_choices
from . import gradients
from .gradient_norm import clip_norm
from .kernel_skips import leave_kernel
from .prepare import Preparation
from .prepared import Optimizer
from .scaled_loss import BackwardContext, TorchScaledLoss, checked_loss
from .step_context import StepContext


class TorchTraining(Training):
    """Training with a ``torch.amp.GradScaler``.

    Args:
        spec: the session's.
        context: what the session's roles share.
        preparation: prepares models and optimizers.
        precision: the session's.
        switches: process-wide settings, held during backward passes.
        reads_without_sync: see ``Device``.
    """

    UNTRACED = ("step", "unscale", "clip_grad_norm", "clip_grad_value", "skip_if")
    """Methods that run uncompiled inside compiled steps."""

    def __init__(
        self,
        spec: SessionSpec,
        context: StepContext,
        preparation: Preparation,
        precision: Precision,
        switches: Switches,
        reads_without_sync: bool,
    ) -> None:
        self._spec, self._preparation, self._precision = spec, preparation, precision
        self._reads_without_sync = reads_without_sync
        self._prepared, self._masters = context.prepared, context.prepared.masters
        self._ranks, self._agreement, self._counts = context.ranks, context.agreement, context.counts
        self._native, self._flags, self._steps = context.native, context.flags, context.steps
        self._scaler, self._loaded = context.scaler, context.loaded
        self._loss, self._reports = context.loss, context.reports
        self._backward_context = BackwardContext(
            context.native,
            self._masters,
            context.flags,
            lambda: op_choices(spec.policy),
            switches or None,
            self._ranks.local_passes,
            self._prepared.without,
        )

    # -- setting up ----------------------------------------------------------------------------------------------

    def is_model(self, obj: object) -> bool:
        return isinstance(obj, torch.nn.Module)

    def prepare(
        self, models: Sequence[torch.nn.Module], optimizers: Sequence[Optimizer]
    ) -> tuple[Sequence[torch.nn.Module], Sequence[Optimizer]]:
        self._preparation.prepare(models, optimizers)
        return models, optimizers

    # -- one step ------------------------------------------------------------------------------------------------

    def scale_loss(self, loss: torch.Tensor, optimizers: Sequence[Optimizer]) -> TorchScaledLoss:
        self._prepared.added.drop_gradients(optimizers)
        return self._scaled(loss, optimizers, self._prepared.inputs(optimizers))

    def scale_whole_loss(self, loss: torch.Tensor, optimizers: Sequence[Optimizer]) -> TorchScaledLoss:
        """Return the scaled loss of a loop that others own: as ``scale_loss``, but every parameter gets gradients.

        Args:
            loss: see ``scale_loss``.
            optimizers: those that are known; there may be none yet.
        """
        return self._scaled(loss, optimizers, None)

    def _scaled(
        self, loss: torch.Tensor, optimizers: Sequence[Optimizer], inputs: Sequence[torch.Tensor] | None
    ) -> TorchScaledLoss:
        value = checked_loss(loss)
        if self._masters.in_use:
            self._masters.attach(optimizers)
        prepared = self._prepared
        prepared.check_shared(optimizers, lambda: self._native.with_open_window(prepared.optimizers))
        first = self._native.begin(loss, optimizers)
        if self._loss.wanted:
            self._loss.note(value.detach(), alone=self._steps.capturing)
        if self._loaded.pending:
            self._loaded.meet()
        if self._scaler is not None:
            value = self._scaler.scaled(value)
            if self._loaded.alone and self._loaded.spoils():
                value = value * math.nan
        if self._spec.accumulate_steps > 1:
            value = value / self._spec.accumulate_steps
        return TorchScaledLoss(self._backward_context, value, loss, optimizers, inputs, first)

    def backward(self, closure: Callable[[], torch.Tensor], optimizers: Sequence[Optimizer]) -> torch.Tensor:
        self._flags.save_with_regions()
        loss: torch.Tensor = backward_in_context(self._precision, self, closure, optimizers)
        self._flags.regions = None
        return loss

    def unscale(self, optimizer: Optimizer) -> None:
        self._flags.save()
        if self._masters.in_use:
            self._masters.model_grads_to_master_grads(optimizer)
        self._drop_frozen(optimizer)
        self._check_gradients(optimizer, "unscale")
        self._steps.unscale(optimizer)

    def clip_grad_norm(self, optimizer: Optimizer, max_norm: float) -> torch.Tensor:
        self._flags.save()
        return clip_norm(optimizer, max_norm, self._reads_without_sync)

    def clip_grad_value(self, optimizer: Optimizer, clip_value: float) -> None:
        self._flags.save()
        gradients.clip_value(optimizer, clip_value)

    def gradients(self, optimizer: Optimizer) -> dict[str, torch.Tensor]:
        return self._prepared.gradients(optimizer)

    def step(self, optimizer: Optimizer, update_scale: bool) -> StepResult:
        self._flags.save()
        masters = self._masters if self._masters.in_use else None
        if masters is not None:
            masters.attach([optimizer])
            masters.model_grads_to_master_grads(optimizer)
        self._drop_frozen(optimizer)
        self._check_gradients(optimizer, "step")
        self._prepared.late.check(optimizer)
        self._prepared.dtypes.check(optimizer)
        if masters is not None:
            masters.begin_update(optimizer)
        if self._agreement.name and not self._ranks.joining:
            self._counts.note(self._agreement.name, self._agreement.members)
        outcome = self._steps.step(optimizer, update_scale)
        if masters is not None:
            masters.master_params_to_model_params()
        # A region around the step, or one that a signal kept open, leaves casts of the old weights there.
        torch.clear_autocast_cache()
        self._flags.regions = None
        self._native.end(optimizer)
        self._loss.end()
        return self._no_gradients(optimizer) if outcome is None else outcome

    def _check_gradients(self, optimizer: Optimizer, call: str) -> None:
        """Refuse gradients that came from no scaled loss, or that were not reduced."""
        self._native.check(optimizer, call)
        self._ranks.local_passes.check(self._model_params(optimizer), f"amp.{call}")

    def _model_params(self, optimizer: Optimizer) -> Iterator[torch.Tensor]:
        return map(self._masters.model_param, gradients.parameters(optimizer))

    def _drop_frozen(self, optimizer: Optimizer) -> None:
        """Drop what earlier micro-batches gave to parameters that were frozen since: it is no mean of the window."""
        if self._spec.accumulate_steps > 1:
            gradients.drop_frozen(optimizer, self._masters.model_param)

    def _no_gradients(self, optimizer: Optimizer) -> StepResult:
        prepared = self._prepared
        refuse_late_sharding(prepared.models, lambda param: param in prepared.names)
        names = prepared.param_names(optimizer)
        self._spec.warn(
            f"amp.step({type(optimizer).__name__}): none of its {len(names)} parameters received a gradient "
            f"({errors.first_names(names)}); nothing was applied and the loss scale stays. Is the loss computed from "
            "another model, or are the parameters frozen?",
            errors.StepWarning,
        )
        scale = self._steps.mark()
        return StepResult(lambda: result.StepValues(False, False, result.NO_GRADIENTS, float(scale), float(scale)))

    def skip_if(self, condition: bool | torch.Tensor, optimizers: Sequence[Optimizer]) -> None:
        self._steps.conditions.add(condition, optimizers)

    def discards_in_step(self, optimizer: Optimizer, last: bool) -> bool:
        if self._steps.capturing or not self._ranks.together(self._scaler is not None):
            return False
        if last and self._steps.conditions.of(optimizer):
            return True
        meet_to_discard(self._ranks, self._prepared.optimizers.index(optimizer))
        return False

    def update_scale(self) -> None:
        self._steps.update_scale()

    def zero_grad(self, optimizer: Optimizer) -> None:
        self._steps.forget_update()
        self._ranks.reduce_in_backward(True)
        self._drop_window(optimizer)

    def _drop_window(self, optimizer: Optimizer) -> None:
        self._masters.zero_model_grads(optimizer)
        self._ranks.drop_unreduced(gradients.parameters(optimizer))
        self._ranks.local_passes.forget(self._model_params(optimizer))
        self._steps.zero_grad(optimizer)
        self._native.end(optimizer)
        self._loss.end()

    def rollback(self, optimizers: Sequence[Optimizer]) -> bool:
        self._flags.restore()
        self._ranks.reduce_in_backward(True)
        self._native.rollback()
        if self._steps.capturing:
            return False  # nothing was computed, and the capture restores Python's state
        for optimizer in optimizers:
            self._drop_window(optimizer)
            leave_kernel(optimizer)
        self._prepared.updates.restore()
        if self._masters.in_use:
            self._masters.master_params_to_model_params()
        self._steps.repair()
        return self._steps.partly_updated(optimizers)

    # -- state ---------------------------------------------------------------------------------------------------

    def read_state(self) -> ScaleState:
        return self._steps.read()

    def poll_state(self) -> ScaleState | None:
        return self._steps.poll()

    def write_state(self, state: ScaleState) -> None:
        self._steps.forget_update()
        self._steps.write(state)

    # -- skipped steps -------------------------------------------------------------------------------------------

    def collect_nonfinite_report(self, enabled: bool) -> None:
        self._reports.collect = enabled

    def keep_skip_report(self, enabled: bool) -> None:
        self._reports.keep_on_device(enabled)

    def nonfinite_report(self) -> NonFiniteReport:
        return self._reports.report()
