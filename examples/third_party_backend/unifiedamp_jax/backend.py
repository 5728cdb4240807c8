"""The JAX backend: one session over Flax NNX models."""

from __future__ import annotations

from typing import Any

from unifiedamp.backend import Backend, Capabilities, Distributed, PlanRow, SessionSpec, Unsupported

from . import autocast, capabilities, native_update, scaler
from .compiler import JaxCompiler
from .device import JaxDevice
from .ema import Averages, JaxAveraging
from .explain import explain
from .precision import JaxPrecision
from .session import JaxSession
from .training import JaxTraining


class JaxDistributed(Distributed):
    """Sharded arrays: one program over all devices, so that all decide alike."""


class JaxBackend(Backend):
    """One session; the roles share a :class:`JaxSession`."""

    name = "jax"
    recorder = Unsupported("not implemented in this example")
    weights = Unsupported("not implemented in this example")
    converter = Unsupported("not implemented in this example")
    layer_shapes = Unsupported("XLA pads matrix products by itself")
    profiler = Unsupported("jax.profiler's traces are not read here")

    def __init__(self, spec: SessionSpec) -> None:
        super().__init__(spec)
        self._device = capabilities.find_device(spec.device)
        capabilities.check_spec(spec, self._device)
        self._session = JaxSession(scaler.Carry(scaler.to_arrays(spec.loss_scale.initial_state())))
        self.device = device = JaxDevice(self._device, spec.device is not None)
        self.precision = JaxPrecision(spec.policy, self._device)
        averages = Averages()
        self.training = JaxTraining(spec, self._session, averages)
        self.averaging = JaxAveraging(self._session, averages)
        self.compiler = JaxCompiler(self._session, device)
        self.distributed = JaxDistributed()

    @classmethod
    def default_policy(cls, device: str | None) -> tuple[str, str]:
        return capabilities.default_policy(device)

    @classmethod
    def custom_function(cls, target: Any, cast_inputs: str | None) -> Any:
        return autocast.custom_function(target, cast_inputs)

    def declare(self) -> Capabilities:
        return capabilities.capabilities(self._device)

    def explain(self) -> list[PlanRow]:
        return explain(self.spec)

    def close(self) -> None:
        for model in self._session.models:
            autocast.detach(model)
        for one in self._session.trained:
            native_update.detach(one.optimizer)
