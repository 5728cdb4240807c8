"""Compiled steps: what core does around a call whose Python may run only while the framework traces it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from ..backend import Backend, Tuning
from ..config.values import check_compile_mode
from ..errors import AmpError, UnsupportedError, WrongObjectError
from ..explain.tuning import warn_debug_modes
from .closed_session import refuse
from .scheduled_policy import CountedStep, ScheduledPolicy
from .step_loop import StepLoop

F = TypeVar("F", bound=Callable[..., Any])


class CompiledSteps:
    """Compiles whole steps and follows their calls.

    Args:
        backend: the session's.
        loop: the calls of its steps.

    Attributes:
        closed: whether every further call is refused.
    """

    def __init__(self, backend: Backend, loop: StepLoop) -> None:
        self._backend, self._loop = backend, loop
        self.closed = False

    def require(self) -> None:
        """Refuse to compile where the backend cannot.

        Raises:
            UnsupportedError: with the reason.
        """
        support = self._backend.capabilities().feature("compile")
        if not support:
            raise UnsupportedError(f"backend {self._backend.name!r} cannot compile: {support.reason}")

    def decorate(self, fn: F | None, mode: str, tuning: Tuning) -> F | Callable[[F], F]:
        """See ``Amp.compile``.

        Raises:
            ConfigError: an unknown ``mode``.
            WrongObjectError: ``fn`` cannot be called.
        """
        check_compile_mode(mode, "amp.compile: mode")
        if self._loop.measure is not None:
            mode = self._loop.measure.mode(mode)
        if fn is None:
            return functools.partial(self._decorated, mode=mode, tuning=tuning)
        return self._decorated(fn, mode, tuning)

    def _decorated(self, fn: F, mode: str, tuning: Tuning) -> F:
        if self.closed:
            refuse("compile")
        if not callable(fn):
            raise WrongObjectError(f"amp.compile takes a function or a model, got {type(fn).__name__}")
        if mode == "off":
            return fn
        self.require()
        warn_debug_modes(self._backend, tuning)
        return self.compile(fn, mode)

    def compile(self, fn: F, mode: str) -> F:
        """Return ``fn`` (a step or a model) compiled, and followed where its calls replay traces."""
        measure = self._loop.measure
        step: Callable[..., Any] = fn
        self._loop.compiled = True
        if measure is not None and self._backend.compiler.replays_traces and not self._backend.training.is_model(fn):
            step = measure.traced(fn)
        policies = self._loop.policies
        if policies is not None and self._backend.compiler.replays_traces and not self._backend.training.is_model(fn):
            step = CountedStep(step, policies, self._loop.order)
        compiled: Any = self._backend.compiler.compile(step, self._loop.order, mode)
        if self._backend.training.is_model(compiled):
            return cast(F, compiled)
        followed = self.follow(compiled) if self._backend.compiler.replays_traces else compiled
        return cast(F, followed if policies is None else self._scheduled(followed, policies))

    def _scheduled(self, compiled: Any, policies: ScheduledPolicy) -> Any:
        """Return ``compiled``, whose calls keep their policy to the end."""
        switch = self._loop.switch_policy

        @functools.wraps(compiled)
        def scheduled(*args: Any, **kwargs: Any) -> Any:
            switch(before_step=True)
            with policies.compiled_call():
                output = compiled(*args, **kwargs)
            switch()
            return output

        return scheduled

    def follow(self, compiled: Any) -> Any:
        """Return ``compiled``; after each call that replays a trace, the scale is polled and the recorder notified."""
        loop, name = self._loop, getattr(compiled, "__name__", "the step")
        order, monitor, measure, policies = loop.order, loop.monitor, loop.measure, loop.policies
        ends: set[Any] = set()  # the orders of calls at entry from which a call ends an iteration

        @functools.wraps(compiled)
        def followed(*args: Any, **kwargs: Any) -> Any:
            listener, counted = loop.listener, monitor.steps
            recorded = None if listener is None else listener.step
            if self.closed:
                refuse(f"compile: {name}()")
            loop.interruptions.check()
            if measure is not None:
                measure.before_call()
            entered, ended, counted_by = order.snapshot(), order.ended, None if policies is None else policies.step
            try:
                output = compiled(*args, **kwargs)
            except AmpError:
                raise  # the calls that ran have discarded their windows
            except BaseException as error:
                loop.interruptions.discard([*order.slots.values()], f"compile: {name}()", error)
                raise
            if order.ended != ended:
                ends.add(entered)
            # Where the call replayed a trace, amp.step did not run.
            if listener is not None and listener.step == recorded and entered in ends:
                listener.after_steps()
            if loop.scaling and monitor.steps == counted:
                monitor.after_step()
            if policies is not None and policies.step == counted_by and order.leads:
                policies.count(policies.counts.get(entered, 0))
            return output if measure is None else measure.after_call(output, entered in ends)

        return followed
