"""The training calls over Flax NNX models and optimizers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from unifiedamp.backend import (
    NonFiniteReport,
    ScaledLoss,
    ScaleState,
    SessionSpec,
    StepResult,
    StepValues,
    Training,
    errors,
    result,
)

from . import autocast, gradients, late_params, native_update, scaler
from .capabilities import NO_CONTEXT_FORM
from .ema import Averages
from .prepare import prepare_model
from .session import JaxSession, current_trace


class JaxTraining(Training):
    """The calls of a step; everything that changes is in ``session.carry``.

    Args:
        spec: what the session asks for.
        session: the prepared objects and the carry.
        averages: of the models' weights.
    """

    def __init__(self, spec: SessionSpec, session: JaxSession, averages: Averages) -> None:
        self._spec, self._session, self._averages = spec, session, averages
        self._applying = False
        self._last: tuple[Any, Any, Any] | None = None  # the last eager step's optimizer, and what was found before

    # -- setting up ----------------------------------------------------------------------------------------------

    def is_model(self, obj: Any) -> bool:
        return isinstance(obj, nnx.Module)

    def prepare(self, models: Sequence[Any], optimizers: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        session = self._session
        for model in models:
            prepare_model(model, self._spec)
        new = [model for model in models if all(model is not one for one in session.models)]
        everything = [*session.models, *new]
        only = everything[0] if len(everything) == 1 else None
        fresh = [one for one in optimizers if all(one is not known.optimizer for known in session.trained)]
        trained = [gradients.bind(optimizer, everything, only) for optimizer in fresh]
        gradients.check_shared(session.trained, trained)
        session.models = everything
        session.known.note(everything)
        session.trained += trained
        session.carry.buffers += [scaler.GradientBuffer(jnp.zeros(len(one.own), bool)) for one in trained]
        for one in trained:
            native_update.attach(one.optimizer, functools.partial(self._waits, one.optimizer))
        return list(models), list(optimizers)

    # -- one step ------------------------------------------------------------------------------------------------

    def scale_loss(self, loss: jax.Array, optimizers: Sequence[Any]) -> AbstractContextManager[ScaledLoss]:
        raise errors.UnsupportedError(f"amp.scale_loss: {NO_CONTEXT_FORM}")

    def backward(self, closure: Callable[[], Any], optimizers: Sequence[Any]) -> Any:
        if self._session.trace != current_trace():
            raise errors.StepOrderError(
                "amp.backward: the step runs inside a JAX transformation that the session does not know, and what it "
                "moves would be lost; compile it by amp.compile instead of jax.jit or nnx.jit"
            )
        if not isinstance(self._session.carry.numbers["scale"], jax.core.Tracer):
            self._session.look()  # a compiled step has looked, outside of its trace
        late_params.refuse(self._session.late, self._session.gone)
        places = [self._place(optimizer) for optimizer in optimizers]
        factor = self._session.carry.numbers["scale"] / self._spec.accumulate_steps
        with autocast.region(True, self._spec.policy):
            loss, found = gradients.differentiate(
                closure, self._session.models, [self._session.trained[i] for i in places], factor
            )
        for place, grads in zip(places, found, strict=True):
            self._session.carry.buffers[place].add(grads, loss)
        return loss

    def unscale(self, optimizer: Any) -> None:
        buffer = self._buffer(optimizer)
        if self._spec.loss_scale.enabled and buffer.grads:
            buffer.grads, buffer.bad = scaler.unscaled(buffer.grads, self._session.carry.numbers["scale"])

    def clip_grad_norm(self, optimizer: Any, max_norm: float) -> Any:
        buffer = self._buffer(optimizer)
        if not buffer.grads:
            return jnp.zeros(())
        buffer.grads, norm = scaler.clipped_norm(buffer.grads, max_norm)
        return norm

    def clip_grad_value(self, optimizer: Any, clip_value: float) -> None:
        buffer = self._buffer(optimizer)
        buffer.grads = scaler.clipped_value(buffer.grads, clip_value)

    def gradients(self, optimizer: Any) -> dict[str, Any]:
        return self._buffer(optimizer).grads

    def step(self, optimizer: Any, update_scale: bool) -> StepResult:
        place = self._place(optimizer)
        buffer, trained = self._session.carry.buffers[place], self._session.trained[place]
        before = self._session.carry.numbers["scale"]
        if not buffer.grads:
            self._warn_of_no_gradients(trained)
            buffer.clear()
            found, dropped, reason = None, None, result.NO_GRADIENTS
        else:
            found, dropped = self._apply_or_skip(optimizer, buffer, trained)
            reason = ""
        if update_scale:
            self.update_scale()
        return self._result(found, dropped, reason, before)

    def _apply_or_skip(self, optimizer: Any, buffer: scaler.GradientBuffer, trained: gradients.Trained) -> Any:
        """Apply or skip, and count.

        Returns:
            Whether a gradient was not finite (None: not checked), and whether a condition alone dropped the step (None:
            there was no condition).
        """
        found = None
        if self._spec.loss_scale.enabled:
            if buffer.bad is None:
                self.unscale(optimizer)
            found = buffer.bad.any()
            scaler.blame(self._session.carry.buffers, buffer, found)
        dropped = buffer.condition
        if dropped is not None and found is not None:
            dropped = dropped & ~found
        skipped = found if dropped is None else dropped if found is None else found | dropped
        if found is not None:
            carry = self._session.carry
            self._last = None if isinstance(found, jax.core.Tracer) else (optimizer, carry.found, carry.judged)
            carry.note(found, dropped)
        move_averages = self._averages.before()
        self._applying = True
        try:
            gradients.apply(trained.optimizer, trained.model, buffer.grads, skipped, tuple(trained.own))
        finally:
            self._applying = False
        move_averages(self._place(optimizer), skipped)
        self._count(found, dropped)
        buffer.clear()
        return found, dropped

    def _count(self, found: Any, dropped: Any) -> None:
        before = self._session.carry.numbers
        numbers = scaler.counted(before, jnp.array(False) if found is None else found)
        self._session.carry.numbers = numbers if dropped is None else scaler.selected(dropped, before, numbers)

    def _warn_of_no_gradients(self, trained: gradients.Trained) -> None:
        self._spec.warn(
            f"amp.step: none of the optimizer's parameters has a gradient ({errors.first_names(trained.own)}); "
            "name the optimizer in amp.backward",
            errors.StepWarning,
        )

    def _result(self, found: Any, dropped: Any, reason: str, before: jax.Array) -> StepResult:
        after = self._session.carry.numbers["scale"]

        def read() -> StepValues:
            if isinstance(before, jax.core.Tracer):
                raise errors.StepOrderError(
                    "a StepResult cannot be read inside a compiled step; read amp.skipped_steps after it"
                )
            bad = found is not None and bool(found)
            why = reason or (result.NON_FINITE if bad else result.APPLIED)
            if dropped is not None and bool(dropped):
                why = result.DISCARDED
            return StepValues(why == result.APPLIED, bad, why, float(before), float(after))

        return StepResult(read)

    def update_scale(self) -> None:
        carry = self._session.carry
        if carry.found is not None:
            numbers = scaler.updated(self._spec.loss_scale, carry.numbers, carry.found)
            judged = carry.judged
            carry.numbers = numbers if judged is None else scaler.selected(judged, numbers, carry.numbers)
        carry.found = carry.judged = self._last = None

    def skip_if(self, condition: bool | jax.Array, optimizers: Sequence[Any]) -> None:
        holds = jnp.array(condition) if isinstance(condition, bool) else _scalar(condition)
        for optimizer in optimizers:
            buffer = self._buffer(optimizer)
            buffer.condition = holds if buffer.condition is None else buffer.condition | holds

    def zero_grad(self, optimizer: Any) -> None:
        self._buffer(optimizer).clear()

    def _waits(self, optimizer: Any) -> bool:
        """Whether the optimizer has gradients that its step has not applied yet."""
        return not self._applying and bool(self._buffer(optimizer).grads)

    def _place(self, optimizer: Any) -> int:
        return next(i for i, one in enumerate(self._session.trained) if one.optimizer is optimizer)

    def _buffer(self, optimizer: Any) -> scaler.GradientBuffer:
        return self._session.carry.buffers[self._place(optimizer)]

    def read_state(self) -> ScaleState:
        numbers = self._session.carry.numbers
        if isinstance(numbers["scale"], jax.core.Tracer):
            raise errors.StepOrderError(
                "amp.loss_scale, amp.applied_steps, amp.skipped_steps: inside a compiled step nothing has run yet; "
                "read them after the call"
            )
        return scaler.to_state(numbers)

    def write_state(self, state: ScaleState) -> None:
        self._session.carry.numbers = scaler.to_arrays(state)

    def nonfinite_report(self) -> NonFiniteReport:
        pairs = list(zip(self._session.trained, self._session.carry.buffers, strict=True))
        names = [name for one, w in pairs for name, bad in zip(one.own, np.asarray(w.blame), strict=True) if bad]
        return NonFiniteReport(tuple(names), bool(pairs[0][1].blamed_loss_finite) if names else None)

    def rollback(self, optimizers: Sequence[Any]) -> bool:
        for optimizer in optimizers:
            self.zero_grad(optimizer)
            if self._last is not None and self._last[0] is optimizer:
                _, self._session.carry.found, self._session.carry.judged = self._last
                self._last = None
        return False


def _scalar(condition: Any) -> jax.Array:
    """Return whether a condition of ``amp.skip_if`` holds."""
    if not isinstance(condition, jax.Array) or condition.shape or jnp.iscomplexobj(condition):
        raise errors.WrongObjectError(
            "amp.skip_if: the condition must be a bool, or a scalar JAX array of bools or numbers; got "
            f"{getattr(condition, 'dtype', type(condition).__name__)} of shape {getattr(condition, 'shape', None)}"
        )
    return condition != 0
