"""The TensorFlow backend: Keras dtype policies, a gradient tape per iteration, a loss scale in variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import tensorflow as tf

from unifiedamp.backend import (
    Backend,
    Capabilities,
    EnvironmentDefaults,
    Launch,
    PlanRow,
    Ranks,
    SessionSpec,
    Unsupported,
)

from . import capabilities
from .compiling.compiled_step import CompileContext
from .compiling.compiler import TensorFlowCompiler
from .device.device import TensorFlowDevice
from .device.environment import environment_defaults
from .device.hardware import recommended_policy
from .device.profiler import NO_KERNELS, TensorFlowProfiler
from .device.selection import select_device
from .device.tuning import TensorFlowTuner
from .distributed import launched
from .distributed.distributed import TensorFlowDistributed
from .explain import plan_rows
from .interop import TensorFlowInterop
from .models.convert import TensorFlowConverter
from .models.shapes import TensorFlowLayerShapes
from .models.weights import TensorFlowWeights
from .precision import operations
from .precision.float8_scales import DelayedScaling
from .precision.keras_mode import KerasMode
from .precision.modes import make_mode
from .precision.policy_switch import TensorFlowPolicySwitcher
from .precision.precision import TensorFlowPrecision
from .precision.tapes import Tapes
from .recording.fit_recorder import FitRecorder
from .recording.forecaster import TensorFlowForecaster
from .recording.recorder import TensorFlowRecorder
from .training.checks import check_spec
from .training.fit import Fitting
from .training.native_steps import NativeSteps
from .training.optimizer_states_role import TensorFlowOptimizerStates
from .training.prepare import Preparation
from .training.prepared_objects import PreparedObjects
from .training.scaled_loss import LossContext
from .training.scaler import DeviceScaler
from .training.step_tracing import StepTracing
from .training.steps import Steps
from .training.training import TensorFlowTraining
from .training.weight_updates_role import TensorFlowWeightUpdates
from .training.wide_params import float64_rows

FIXED = "the graph rewrite converts a graph once, by one policy; mode='keras' can change it"


class TensorFlowBackend(Backend):
    """One session on TensorFlow and Keras."""

    name: ClassVar[str] = "tensorflow"
    ray_trainer: ClassVar[str | None] = "ray.train.tensorflow:TensorflowTrainer"
    distributed: TensorFlowDistributed

    def __init__(self, spec: SessionSpec) -> None:
        for policy in spec.policies:
            check_spec(spec.under(policy))
        super().__init__(spec)
        self._info = info = select_device(spec.device)
        tuner = TensorFlowTuner(spec, info)
        delayed = spec.delayed_recipe
        scaling = DelayedScaling(delayed or spec.policy.float8)
        self._mode = mode = make_mode(spec, info, scaling)
        for policy in spec.policies:
            capabilities.warn_without_gain(spec.under(policy), info)

        native_steps, tapes = NativeSteps(spec.schedule is not None), Tapes()
        scaler = DeviceScaler(spec.loss_scale, info.is_cpu, native_steps) if spec.loss_scale.enabled else None
        device = TensorFlowDevice(info)
        distributed = TensorFlowDistributed(_mover(scaler))
        prepared, tracing = PreparedObjects(distributed, scaling if delayed else None), StepTracing(tapes, native_steps)
        recorder = TensorFlowRecorder(prepared, distributed, scaler)
        steps = Steps(scaler, native_steps, recorder, scaling)
        fitting = Fitting(spec, native_steps, prepared, scaler, FitRecorder(recorder, prepared, distributed))
        precision = TensorFlowPrecision(mode, tapes, tuner)
        preparation = Preparation(spec, mode, tuner, distributed, scaler, steps, fitting, prepared)
        losses = LossContext(
            distributed, mode, tapes, tuner.switches, scaler, tracing, spec.accumulate_steps, spec.warn
        )
        compiling = CompileContext(spec, mode, tuner.switches, distributed, prepared, recorder, tracing)

        self._preparation, self._prepared = preparation, prepared
        self.device, self.precision, self.tuner, self.distributed = device, precision, tuner, distributed
        self.training = TensorFlowTraining(spec, precision, prepared, preparation, losses, steps, native_steps, scaling)
        self.amax_history = scaling
        self.compiler = TensorFlowCompiler(compiling, device)
        self.recorder = recorder
        self.forecaster = TensorFlowForecaster(prepared, recorder, scaler)
        self.weights = TensorFlowWeights(prepared.true_weights, prepared.set_true_weights)
        self.averaging = prepared.averaging
        self.weight_updates = TensorFlowWeightUpdates(prepared)
        self.optimizer_states = TensorFlowOptimizerStates(prepared)
        self.policy_switcher = (
            TensorFlowPolicySwitcher(spec, mode, prepared.models) if isinstance(mode, KerasMode) else Unsupported(FIXED)
        )
        self.converter = TensorFlowConverter(spec, info, prepared.true_weights)
        self.layer_shapes = TensorFlowLayerShapes()
        self.profiler = Unsupported(NO_KERNELS) if info.is_cpu else TensorFlowProfiler()
        self.interop = TensorFlowInterop(spec, distributed, scaler, steps, prepared, fitting)

    @classmethod
    def default_policy(cls, device: str | None) -> tuple[str, str]:
        return recommended_policy(select_device(device))

    @classmethod
    def communication(cls) -> dict[str, str]:
        built = bool(tf.sysconfig.get_build_info().get("is_cuda_build"))
        return {"NCCL": "available" if built else "not in this build of TensorFlow", "gRPC": "available"}

    @classmethod
    def environment_defaults(cls, device: str | None, options: Mapping[str, Any]) -> EnvironmentDefaults:
        """Return what the environment variables of TensorFlow's graph rewrite ask for."""
        return environment_defaults(select_device(device), options)

    @classmethod
    def custom_function(cls, target: Any, cast_inputs: str | None) -> Any:
        return operations.custom_function(target, cast_inputs)

    @classmethod
    def join(cls, launch: Launch, device: str | None) -> tuple[Ranks, str]:
        return launched.join(launch, device)

    def declare(self) -> Capabilities:
        emulate = self.spec.options.get("emulate", False) or self.spec.policy.emulate
        return capabilities.declare(self._info, self._mode.op_overrides(), self.tuner.support(), emulate=emulate)

    def explain(self) -> list[PlanRow]:
        """Return the plan; under ``mode="graph_rewrite"`` a small graph is converted to see the effect."""
        rows = [
            *float64_rows(self._prepared.models, self.spec),
            *self.distributed.rows(self.spec.reduce_dtype),
        ]
        return [*self._mode.explain(), *plan_rows(self.spec, self._info), *rows]

    def close(self) -> None:
        self._preparation.close()
        self._mode.detach()


def _mover(scaler: DeviceScaler | None) -> Callable[[AbstractContextManager[Any]], None]:
    """Return what recreates the scale's variables in a strategy's scope."""
    return scaler.move if scaler is not None else lambda _scope: None
