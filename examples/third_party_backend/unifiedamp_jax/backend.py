"""The JAX backend: one session over Flax NNX models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from unifiedamp.backend import (
    Capabilities,
    LegacyBackend,
    NonFiniteReport,
    PlanRow,
    Policy,
    ScaleState,
    SessionSpec,
    StepResult,
    StepValues,
    errors,
    result,
)

from . import autocast, facts, gradients, ops, scaler
from .compile import compile_step, current_trace
from .prepare import prepare_model


class JaxBackend(LegacyBackend):
    """One session. Everything that moves is in ``carry``, so that a compiled step takes it in and gives it back."""

    name = "jax"
    replays_traces = True

    def __init__(self, spec: SessionSpec) -> None:
        super().__init__(spec)
        self.device = facts.find_device(spec.device)
        facts.check_spec(spec, self.device)
        self.looking_is_free = self.device.platform == "cpu"
        self.models: list[nnx.Module] = []
        self.trained: list[gradients.Trained] = []
        self.carry = scaler.Carry(scaler.to_arrays(spec.loss_scale.initial_state()))
        self.trace = current_trace()

    # -- facts ---------------------------------------------------------------------------------------------------

    @classmethod
    def default_policy(cls, device: str | None) -> tuple[str, str]:
        """See ``Backend``."""
        return facts.default_policy(device)

    def capabilities(self) -> Capabilities:
        """See ``Backend``."""
        return facts.capabilities(self.device)

    def explain(self) -> list[PlanRow]:
        """See ``Backend``."""
        return facts.explain(self.spec)

    # -- setting up ----------------------------------------------------------------------------------------------

    def scope(self) -> AbstractContextManager[Any]:
        """See ``Backend``."""
        return jax.default_device(self.device)

    def is_model(self, obj: Any) -> bool:
        """See ``Backend``."""
        return isinstance(obj, nnx.Module)

    def prepare(self, models: Sequence[Any], optimizers: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """See ``Backend``."""
        for model in models:
            prepare_model(model, self.spec)
        new = [model for model in models if all(model is not one for one in self.models)]
        everything = [*self.models, *new]
        only = everything[0] if len(everything) == 1 else None
        fresh = [one for one in optimizers if all(one is not known.optimizer for known in self.trained)]
        trained = [gradients.bind(optimizer, everything, only) for optimizer in fresh]
        self.models = everything
        self.trained += trained
        self.carry.windows += [scaler.Window(jnp.zeros(len(one.paths), bool)) for one in trained]
        return list(models), list(optimizers)

    def close(self) -> None:
        """See ``Backend``."""
        for model in self.models:
            autocast.detach(model)

    def bundle(self) -> Any:
        """Return all that a step may change besides ``carry``."""
        return self.models, [one.optimizer for one in self.trained]

    # -- one step ------------------------------------------------------------------------------------------------

    def autocast(self, enabled: bool, policy: Policy | None) -> AbstractContextManager[Any]:
        """See ``Backend``."""
        if policy is not None:
            ops.check_policy(policy)
        return autocast.region(enabled, policy or self.spec.policy)

    def inference(self, models: Sequence[Any]) -> AbstractContextManager[Any]:
        """See ``Backend``."""
        return autocast.inference(models, self.spec.policy)

    def backward(self, closure: Callable[[], Any], optimizers: Sequence[Any]) -> Any:
        """See ``Backend``."""
        if self.trace != current_trace():
            raise errors.StepOrderError(
                "amp.backward: the step runs inside a JAX transformation that the session does not know, and what it "
                "moves would be lost; compile it by amp.compile instead of jax.jit or nnx.jit"
            )
        places = [self._place(optimizer) for optimizer in optimizers]
        factor = self.carry.numbers["scale"] / self.spec.accumulate_steps
        with autocast.region(True, self.spec.policy):
            loss, found = gradients.differentiate(closure, self.models, [self.trained[i] for i in places], factor)
        for place, grads in zip(places, found, strict=True):
            self.carry.windows[place].add(grads, loss)
        return loss

    def unscale(self, optimizer: Any) -> None:
        """See ``Backend``."""
        window = self._window(optimizer)
        if self.spec.loss_scale.enabled and window.grads:
            window.grads, window.bad = scaler.unscaled(window.grads, self.carry.numbers["scale"])

    def clip_grad_norm(self, optimizer: Any, max_norm: float) -> Any:
        """See ``Backend``."""
        window = self._window(optimizer)
        window.grads, norm = scaler.clipped_norm(window.grads, max_norm)
        return norm

    def clip_grad_value(self, optimizer: Any, clip_value: float) -> None:
        """See ``Backend``."""
        window = self._window(optimizer)
        window.grads = scaler.clipped_value(window.grads, clip_value)

    def gradients(self, optimizer: Any) -> dict[str, Any]:
        """See ``Backend``."""
        return self._window(optimizer).grads

    def step(self, optimizer: Any, update: bool) -> StepResult:
        """See ``Backend``."""
        place = self._place(optimizer)
        window, trained = self.carry.windows[place], self.trained[place]
        before = self.carry.numbers["scale"]
        if not window.grads:
            self._warn_of_no_gradients(trained)
            found, reason = None, result.NO_GRADIENTS
        else:
            found, reason = self._settle(optimizer, window, trained), ""
        if update:
            self.update()
        return self._result(found, reason, before)

    def _settle(self, optimizer: Any, window: scaler.Window, trained: gradients.Trained) -> Any:
        """Apply or skip, and count; return whether a gradient was not finite (None: nobody looked)."""
        found = None
        if self.spec.loss_scale.enabled:
            if window.bad is None:
                self.unscale(optimizer)
            found = window.bad.any()
            scaler.blame(self.carry.windows, window, found)
            self.carry.found = found if self.carry.found is None else self.carry.found | found
        gradients.apply(trained.optimizer, trained.model, window.grads, found)
        self.carry.numbers = scaler.counted(self.carry.numbers, jnp.array(False) if found is None else found)
        window.clear()
        return found

    def _warn_of_no_gradients(self, trained: gradients.Trained) -> None:
        self.spec.warn(
            f"amp.step: none of the optimizer's parameters has a gradient ({errors.first_names(trained.paths)}); "
            "name the optimizer in amp.backward",
            errors.StepWarning,
        )

    def _result(self, found: Any, reason: str, before: jax.Array) -> StepResult:
        after = self.carry.numbers["scale"]

        def read() -> StepValues:
            if isinstance(before, jax.core.Tracer):
                raise errors.StepOrderError(
                    "a StepResult cannot be read inside a compiled step; read amp.skipped_steps after it"
                )
            bad = found is not None and bool(found)
            why = reason or (result.NON_FINITE if bad else result.APPLIED)
            return StepValues(why == result.APPLIED, bad, why, float(before), float(after))

        return StepResult(read)

    def update(self) -> None:
        """See ``Backend``."""
        if self.carry.found is not None:
            self.carry.numbers = scaler.moved(self.spec.loss_scale, self.carry.numbers, self.carry.found)
        self.carry.found = None

    def drop_gradients(self, optimizer: Any) -> None:
        """See ``Backend``."""
        self._window(optimizer).clear()

    def _place(self, optimizer: Any) -> int:
        return next(i for i, one in enumerate(self.trained) if one.optimizer is optimizer)

    def _window(self, optimizer: Any) -> scaler.Window:
        return self.carry.windows[self._place(optimizer)]

    # -- state ---------------------------------------------------------------------------------------------------

    def read_state(self) -> ScaleState:
        """See ``Backend``."""
        return scaler.to_state(self.carry.numbers)

    def write_state(self, state: ScaleState) -> None:
        """See ``Backend``."""
        self.carry.numbers = scaler.to_arrays(state)

    def non_finite_report(self) -> NonFiniteReport:
        """See ``Backend``."""
        pairs = list(zip(self.trained, self.carry.windows, strict=True))
        names = [name for one, w in pairs for name, bad in zip(one.paths, np.asarray(w.blame), strict=True) if bad]
        return NonFiniteReport(tuple(names), bool(pairs[0][1].blamed_loss_finite) if names else None)

    # -- tools ---------------------------------------------------------------------------------------------------

    def compile(self, fn: Callable[..., Any], window: Any, mode: str) -> Callable[..., Any]:
        """See ``Backend``: ``jax.jit``, which is also the most there is."""
        self.looking_is_free = False
        return compile_step(self, fn, window)

    def tracing(self) -> bool:
        """See ``Backend``."""
        return isinstance(self.carry.numbers["scale"], jax.core.Tracer)

    def to_native(self, array: Any, dtype: str | None = None) -> jax.Array:
        """See ``Backend``."""
        if isinstance(array, jax.Array):
            return array if dtype is None else array.astype(_checked(dtype))
        if not isinstance(array, (np.ndarray, np.generic)) and hasattr(array, "__dlpack__"):
            array = jnp.from_dlpack(array)
        else:
            array = np.asarray(array)
        if dtype is not None or array.dtype == np.float64:
            array = array.astype(_checked(dtype or "float32"))
        # Without a device that was asked for, an array stays where JAX may move it, as the models' own do.
        return jax.device_put(array, self.device if self.spec.device else None)

    def to_numpy(self, tensor: Any) -> Any:
        """See ``Backend``."""
        wide = tensor.astype(jnp.float32) if getattr(tensor, "dtype", None) == jnp.bfloat16 else tensor
        return np.asarray(wide)

    @classmethod
    def custom_function(cls, target: Any, cast_inputs: str | None) -> Any:
        """See ``Backend``."""
        return autocast.custom_function(target, cast_inputs)


def _checked(dtype: str) -> Any:
    if dtype == "float64" and not jax.config.jax_enable_x64:
        raise errors.UnsupportedError("amp.to_native: JAX has no float64 unless jax_enable_x64 is set")
    return jnp.dtype(dtype)
