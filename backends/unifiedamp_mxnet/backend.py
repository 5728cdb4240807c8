"""The MXNet backend: Gluon models and Trainers, imperative and hybridized, MXNet 1.9 and 2."""

from __future__ import annotations

from typing import Any

from unifiedamp.backend import (
    Backend,
    Capabilities,
    Launch,
    PlanRow,
    Ranks,
    SessionSpec,
    Unsupported,
    errors,
)

from .capabilities import declare
from .compiling.compiler import Hybridizer, MXNetCompiler
from .device.device import MXNetDevice
from .device.selection import resolve_context
from .device.tuning import MXNetTuner, TuningState
from .distributed import launched
from .distributed.distributed import MXNetDistributed
from .distributed.plan import rank_rows
from .explain import explain
from .interop import MXNetInterop
from .models.convert import MXNetConverter
from .models.shapes import MXNetLayerShapes
from .models.weights import MXNetWeights
from .mxnet_api import mx, upstream
from .options import check_options, emulated, hybridize_call, with_emulation
from .precision.custom_functions import wrap_custom
from .precision.float8_scales import DelayedScaling
from .precision.layers import BoundaryCasts
from .precision.policies import check_session_policy, default_policy
from .precision.policy_switch import MXNetPolicySwitcher
from .precision.precision import MXNetPrecision
from .precision.prepared_models import PreparedModels
from .precision.tables import CastTables
from .recording.forecaster import MXNetForecaster
from .recording.recorder import MXNetRecorder
from .training.ema import MXNetAveraging
from .training.optimizer_states_role import MXNetOptimizerStates
from .training.prepared_optimizers import PreparedOptimizers
from .training.scaler import SessionScaler
from .training.training import MXNetTraining
from .training.weight_updates_role import MXNetWeightUpdates


class MXNetBackend(Backend):
    """The roles over one session's models, Trainers, casts and loss scale."""

    name = "mxnet"
    profiler = Unsupported("MXNet's profiler names operators, not the device's kernels")

    device: MXNetDevice
    precision: MXNetPrecision
    training: MXNetTraining

    def __init__(self, spec: SessionSpec) -> None:
        check_options(spec)
        _refuse_native_amp()
        spec = with_emulation(spec)
        super().__init__(spec)
        context = resolve_context(spec.device)
        for policy in spec.policies:
            check_session_policy(spec.under(emulated(spec, policy)), context)
        delayed = spec.delayed_recipe
        scaling = None if delayed is None else DelayedScaling(delayed)
        scaler, boundaries = SessionScaler(spec.loss_scale), BoundaryCasts(scaling)
        tuning = TuningState(spec)
        tables = CastTables(spec, context, boundaries, tuning.optimize_layout)
        models = PreparedModels(spec, boundaries, tables)
        self._models = models
        self._optimizers = optimizers = PreparedOptimizers(spec, scaler, models.originals, models.emulated, tuning.fuse)
        hybridizer = Hybridizer(spec, models.models)
        self._closing = (optimizers.close, models.close)
        self.device = MXNetDevice(context)
        self.precision = MXNetPrecision(context, tables, optimizers.begin_region)
        self.compiler = MXNetCompiler(hybridizer)
        self.training = MXNetTraining(spec, scaler, self.precision, models, optimizers, hybridizer.on_model, scaling)
        self.amax_history = scaling or DelayedScaling(spec.policy.float8)
        self.recorder = MXNetRecorder(spec, scaler, models.models, optimizers)
        self.forecaster = MXNetForecaster(scaler, models.models, optimizers)
        self.weights = MXNetWeights(optimizers.masters_of, optimizers.load_masters)
        self.weight_updates = MXNetWeightUpdates(optimizers)
        self.optimizer_states = MXNetOptimizerStates(optimizers)
        self.averaging = MXNetAveraging(optimizers)
        self.policy_switcher = MXNetPolicySwitcher(spec, tables)
        self.converter = MXNetConverter(optimizers.masters_of)
        self.layer_shapes = MXNetLayerShapes()
        self.distributed = MXNetDistributed(optimizers.state_loaded)
        compile_call = hybridize_call(spec.options, spec.compile_mode, bulk=True)
        self.tuner = MXNetTuner(spec, context, models.models, tuning, compile_call)
        self.interop = MXNetInterop(spec.policy, scaler)

    @classmethod
    def default_policy(cls, device: str | None) -> tuple[str, str]:
        return default_policy(resolve_context(device))

    @classmethod
    def communication(cls) -> dict[str, str]:
        features = mx.runtime.Features()
        names = {"NCCL": "NCCL", "distributed kvstore": "DIST_KVSTORE"}
        absent = "not in this build of MXNet"
        return {name: "available" if features.is_enabled(flag) else absent for name, flag in names.items()}

    @classmethod
    def custom_function(cls, target: Any, cast_inputs: str | None) -> Any:
        return wrap_custom(target, cast_inputs)

    @classmethod
    def join(cls, launch: Launch, device: str | None) -> tuple[Ranks, str]:
        return launched.join(launch, device)

    def declare(self) -> Capabilities:
        return declare(self.device.context)

    def explain(self) -> list[PlanRow]:
        rows = explain(self.spec, self.device.context, self.precision.tables.session, self._models.models)
        return [*rows, *rank_rows((prepared.trainer for prepared in self._optimizers), self.spec)]

    def close(self) -> None:
        for close in self._closing:
            close()


def _refuse_native_amp() -> None:
    """Refuse a process in which MXNet's own AMP was initialized.

    Raises:
        ConfigError: it was.
    """
    if upstream._amp_initialized:
        raise errors.ConfigError(
            "mxnet's own amp.init() was called in this process; it casts every operator for good and cannot be "
            "undone: leave it out, amp.autocast() does its work"
        )
