"""The torch backend: the composition root of its roles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from unifiedamp.backend import Backend, Capabilities, Launch, PlanRow, Policy, Ranks, SessionSpec, errors

from . import explain
from .capabilities import capabilities, check_policy, check_region
from .compiling.compiler import TorchCompiler
from .device.device import TorchDevice
from .device.profiler import profiler_for
from .device.selection import default_policy, pick_device
from .device.tuning import TorchTuner
from .distributed import launched
from .distributed.distributed import distributed_here
from .distributed.libraries import libraries
from .distributed.plan import rank_rows
from .distributed.ranks import TrainingRanks
from .distributed.wrapped import AVAILABLE
from .interop import TorchInterop
from .models.convert import TorchConverter
from .models.shapes import TorchLayerShapes
from .models.weights import TorchWeights
from .options import TorchOptions
from .precision import custom_functions, emulation, float8_experts, float8_layers
from .precision.float8_history import TorchAmaxHistory
from .precision.policy_switch import TorchPolicySwitcher
from .precision.precision import TorchPrecision
from .precision.regions import Regions
from .recording.forecaster import TorchForecaster
from .recording.recorder import TorchRecorder
from .training.ema import TorchAveraging
from .training.host_loops import HostLoops
from .training.optimizer_states_role import TorchOptimizerStates
from .training.prepare import Preparation
from .training.step_context import StepContext
from .training.training import TorchTraining
from .training.weight_updates_role import TorchWeightUpdates


class TorchBackend(Backend):
    """One session on torch; ``options.TorchOptions`` has its ``backend_options``."""

    name: ClassVar[str] = "torch"
    ray_trainer: ClassVar[str | None] = "ray.train.torch:TorchTrainer"
    device: TorchDevice
    training: TorchTraining
    compiler: TorchCompiler
    recorder: TorchRecorder
    forecaster: TorchForecaster

    def __init__(self, spec: SessionSpec) -> None:
        super().__init__(spec)
        self._options = options = TorchOptions.read(spec)
        native = pick_device(spec.device)
        for policy in spec.policies:
            check_policy(spec.under(policy), native, options.emulate)
        self.device = TorchDevice(native, options.scale_on_device)
        self.tuner = TorchTuner(spec, native)
        switches, no_sync = self.tuner.switches, self.device.reads_without_sync
        self._steps = steps = StepContext.create(
            spec,
            native,
            no_sync,
            TrainingRanks(options.process_group, options.shards_reduce_once),
            options.float8_all_gather,
        )
        explain = steps.prepared.dtypes.explain
        self._regions = Regions(spec, native, switches, options.cache_enabled, self._check_region, explain)
        self.precision = TorchPrecision(self._regions, native, options.scope_device)
        self._preparation = Preparation(
            spec,
            native,
            steps.prepared,
            steps.ranks,
            steps.agreement,
            steps.native,
            self.tuner,
            self._regions.cache,
            options.emulate,
            steps.float8,
            options.float8_min_features,
        )
        self.training = TorchTraining(spec, steps, self._preparation, self.precision, switches, no_sync)
        self.recorder = TorchRecorder(native, spec, steps)
        self.forecaster = TorchForecaster(native, steps)
        untraced = [(role, role.UNTRACED) for role in (self.training, self.recorder, self.forecaster)]
        self.compiler = TorchCompiler(
            spec, native, steps, switches, self.recorder, lambda: self.forecaster.counting, untraced
        )

        self.weights = TorchWeights(steps.prepared.masters)
        self.averaging = TorchAveraging(steps.averages)
        self.weight_updates = TorchWeightUpdates(steps.prepared)
        self.optimizer_states = TorchOptimizerStates(steps.prepared)
        self.amax_history = TorchAmaxHistory(steps.float8, steps.agreement)
        self.policy_switcher = TorchPolicySwitcher(
            spec, self._regions, steps.float8, steps.agreement, self._preparation.follow_policy
        )
        self.converter = TorchConverter(steps.prepared.masters.read)
        self.layer_shapes = TorchLayerShapes()
        self.profiler = profiler_for(native)
        self.distributed = distributed_here(spec, steps.ranks, steps.loaded)
        self.interop = TorchInterop(steps.scaler, HostLoops(steps, self.training))

    def _check_region(self, policy: Policy) -> None:
        check_region(self.spec.policy, policy)
        check_policy(replace(self.spec, policy=policy), self.device.native, self._options.emulate)

    @classmethod
    def default_policy(cls, device: str | None) -> tuple[str, str]:
        return default_policy(device)

    @classmethod
    def custom_function(cls, target: Any, cast_inputs: str | None) -> Any:
        return custom_functions.wrap_custom(target, cast_inputs)

    @classmethod
    def communication(cls) -> dict[str, str]:
        return libraries()

    @classmethod
    def join(cls, launch: Launch, device: str | None) -> tuple[Ranks, str]:
        if not AVAILABLE:
            raise errors.UnsupportedError("train: this torch was built without torch.distributed")
        return launched.join(launch, device)

    def declare(self) -> Capabilities:
        return capabilities(self.device.native, self._options.emulate)

    def explain(self) -> list[PlanRow]:
        prepared, options, shared = self._steps.prepared, self._options, self.compiler.why_uncompiled()
        rows = explain.rows(self.spec, options, self.device.native, self._regions.cache, prepared.optimizers, shared)
        rows += explain.float64_rows(self.spec.policy, prepared.models)
        rows += rank_rows(self._steps.ranks, prepared.models, self.spec)
        if self.spec.policy.compute_dtype == "float8":
            least, emulate = options.float8_min_features, options.emulate or self.spec.policy.emulate
            rows += float8_layers.rows(self._preparation.float8, self.spec.policy.float8, emulate, least)
            rows += float8_experts.rows(self._preparation.float8_experts, self.spec.policy.float8, emulate)
            rows += self._steps.float8.rows()
        return rows + emulation.rows(self.spec.policy)

    def close(self) -> None:
        self._steps.ranks.reduce_in_backward(True)
        self._preparation.close()
        self._regions.close()
