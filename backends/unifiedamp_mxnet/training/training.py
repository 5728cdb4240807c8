"""``MXNetTraining``: from ``prepare`` to the end of a step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from unifiedamp.backend import NonFiniteReport, ScaleState, SessionSpec, StepResult, Training, errors, result
from unifiedamp.backend import backward_in_context as run_backward

from .._types import Array, Block, Trainer
from ..device.numpy_semantics import in_numpy_semantics
from ..mxnet_api import gluon
from ..precision.autocast import outside_regions
from ..precision.float8_scales import DelayedScaling
from ..precision.precision import MXNetPrecision
from ..precision.prepared_models import PreparedModels
from . import clipping, prepare_checks
from .backward import BackwardPasses
from .late_params import LateParams
from .native_calls import check_backward
from .prepared_optimizers import PreparedOptimizers
from .scaled_loss import ScaledLosses, read_condition, read_losses
from .scaler import SessionScaler


class MXNetTraining(Training):
    """The training calls over Gluon's Trainers.

    Args:
        spec: the session's.
        scaler: the session's loss scale.
        precision: for ``backward``'s autocast region.
        models: the session's models.
        optimizers: the session's Trainers.
        on_model: called with each prepared model.
        scaling: delayed float8 scaling; None for other policies.
    """

    def __init__(
        self,
        spec: SessionSpec,
        scaler: SessionScaler,
        precision: MXNetPrecision,
        models: PreparedModels,
        optimizers: PreparedOptimizers,
        on_model: Callable[[Block], None],
        scaling: DelayedScaling | None = None,
    ) -> None:
        self._spec, self._scaler, self._precision = spec, scaler, precision
        self._models, self._optimizers, self._on_model = models, optimizers, on_model
        self._backward, self._scaling, self._late = BackwardPasses(optimizers), scaling, LateParams(optimizers)
        self._names: dict[int, str] = {}
        self._report = NonFiniteReport()

    # -- setting up ----------------------------------------------------------------------------------------------

    def is_model(self, obj: object) -> bool:
        return isinstance(obj, gluon.Block)

    @in_numpy_semantics
    def prepare(
        self, models: Sequence[Block], optimizers: Sequence[Trainer]
    ) -> tuple[Sequence[Block], Sequence[Trainer]]:
        for trainer in optimizers:
            prepare_checks.check_trainer(trainer)
        names = self._names | prepare_checks.parameter_names([*self._models.models, *models])
        earlier = [prepared.trainer for prepared in self._optimizers]
        prepare_checks.check_prepare(models, optimizers, names, self._spec, self._models.originals, earlier)
        prepare_checks.check_shared(optimizers, earlier, names)
        self._names = names
        for model in models:
            prepare_checks.warn_fixed_graph(model, self._spec)
            self._models.add(model)
            self._on_model(model)
        if models:
            self._models.check()
        for trainer in optimizers:
            self._optimizers.add(trainer, names)
        self._late.follow(models)
        return list(models), list(optimizers)

    # -- one step ------------------------------------------------------------------------------------------------

    @in_numpy_semantics
    def scale_loss(self, loss: Array | Sequence[Array], optimizers: Sequence[Trainer]) -> ScaledLosses:
        losses = read_losses(loss)
        factor = self._scaler.state.scale / self._spec.accumulate_steps
        named = [self._optimizers[trainer] for trainer in optimizers]
        buffers = [prepared.buffer for prepared in named]
        check_backward([buffer for buffer in buffers if buffer.pending], "scale_loss")
        for buffer in buffers:
            buffer.begin()
        run = functools.partial(self._backward.run, named=named)
        check = functools.partial(check_backward, buffers, "scale_loss")
        return ScaledLosses(self._scaler, losses, factor, run, check, single=not isinstance(loss, (list, tuple)))

    def backward(self, closure: Callable[[], Array], optimizers: Sequence[Trainer]) -> Array:
        return run_backward(self._precision, self, closure, optimizers)  # type: ignore[no-any-return]  # Tensor

    @outside_regions
    def unscale(self, optimizer: Trainer) -> None:
        self._optimizers[optimizer].unscale()

    @outside_regions
    def clip_grad_norm(self, optimizer: Trainer, max_norm: float) -> Array | None:
        return clipping.clip_grad_norm(self._optimizers[optimizer].buffer.gradients(), max_norm)

    @outside_regions
    def clip_grad_value(self, optimizer: Trainer, clip_value: float) -> None:
        clipping.clip_grad_value(self._optimizers[optimizer].buffer.gradients(), clip_value)

    def gradients(self, optimizer: Trainer) -> dict[str, Array | list[Array]]:
        return self._optimizers[optimizer].buffer.by_name()

    @outside_regions
    def step(self, optimizer: Trainer, update_scale: bool) -> StepResult:
        self._late.check()
        prepared, scaler = self._optimizers[optimizer], self._scaler
        scale = scaler.state.scale
        reason = prepared.step()
        found = reason == result.NON_FINITE
        if found:
            self._report = prepared.report
        if reason == result.NO_GRADIENTS:
            self._spec.warn(prepared.no_gradients_message(), errors.StepWarning)
        elif reason != result.DISCARDED:
            scaler.count(found, id(prepared))
        if self._scaling is not None:
            self._scaling.note_step(reason in (result.NON_FINITE, result.DISCARDED), update_scale)
        if update_scale:
            scaler.update()
        return StepResult.of(reason == result.APPLIED, found, reason, scale, scaler.state.scale)

    @outside_regions
    def skip_if(self, condition: bool | Array, optimizers: Sequence[Trainer]) -> None:
        known = condition if isinstance(condition, bool) else read_condition(condition)
        for trainer in optimizers:
            buffer = self._optimizers[trainer].buffer
            buffer.condition = known or bool(buffer.condition)

    def update_scale(self) -> None:
        if self._scaling is not None:
            self._scaling.end()
        self._scaler.update()

    @outside_regions
    def zero_grad(self, optimizer: Trainer) -> None:
        self._optimizers[optimizer].buffer.zero_grad()
        if self._scaling is not None:
            self._scaling.discard()

    @outside_regions
    def rollback(self, optimizers: Sequence[Trainer]) -> bool:
        named = [self._optimizers[trainer] for trainer in optimizers]
        self._backward.restore_gradients([])  # windows that are not named go on
        partly = [prepared.rollback() for prepared in named]
        if self._scaling is not None:
            self._scaling.discard()
        return any(partly)

    # -- state ---------------------------------------------------------------------------------------------------

    def read_state(self) -> ScaleState:
        return self._scaler.read()

    def write_state(self, state: ScaleState) -> None:
        self._scaler.write(state)

    def nonfinite_report(self) -> NonFiniteReport:
        return self._report
