"""``amp.compile``: ``tf.function`` over a whole step, with the Python state of each trace put back after each call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import config

from unifiedamp.backend import CallState, errors

from .bound import Bound
from .replicas import Alone
from .tapes import Tapes


def _leave_unconverted() -> None:
    """Keep AutoGraph from rewriting unifiedamp's own Python, which decides while tracing."""
    rules = [config.DoNotConvert(name) for name in ("unifiedamp", __name__.partition(".")[0])]
    config.CONVERSION_RULES = (*rules, *config.CONVERSION_RULES)


_leave_unconverted()


class CompiledStep:
    """A traced step.

    Python runs while tracing only, so the order of calls at entry picks the trace (an accumulating micro-step and the
    one at the boundary are two), and the order of calls that the trace ended in is put back after each call. Which of
    its traces a ``tf.function`` replayed is told by its output structure, which costs nothing: results come back under
    a key that stands for the end state.

    Args:
        fn: the user's step.
        window: core's order of calls.
        bounds: the prepared optimizers' windows, read at each call.
        tapes: the session's tapes.
        replicas: returns where the session's models train.
        xla: compile by XLA.
        around: makes a context for the traced call (graph rewrite), None without one.
    """

    def __init__(
        self, fn: Callable[..., Any], window: CallState, bounds: Sequence[Bound], tapes: Tapes,
        replicas: Callable[[], Alone], xla: bool, around: Callable[[], AbstractContextManager[Any]] | None = None,
    ) -> None:  # fmt: skip
        functools.update_wrapper(self, fn, updated=())
        self._fn = fn if not isinstance(fn, tf.Module) else functools.partial(fn)
        self._window, self._bounds, self._tapes, self._xla = window, bounds, tapes, xla
        self._replicas = replicas
        self._across: CompiledStep | None = None
        self._around = around or nullcontext
        self._functions: dict[Any, Any] = {}
        self._ends: list[Any] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step."""
        if self._replicas().calling():
            return self._replicas().together(self._over_replicas, args, kwargs)
        start = self._state()
        function = self._functions.get(start)
        if function is None:
            function = self._functions[start] = self._traced()
        try:
            with self._around():
                output = function(*args, **kwargs)
        except Exception as error:
            self._restore(start)
            ours = _ours(error)
            if ours is None or ours is error:
                raise
            raise ours from None
        ((end, result),) = output.items()
        self._restore(self._ends[end])
        return result

    def _over_replicas(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step of all replicas in one trace: TensorFlow cannot sum over them from within separate ones."""
        if self._across is None:
            strategy = tf.distribute.get_strategy()
            self._across = CompiledStep(
                lambda *args, **kwargs: strategy.run(self._fn, args, kwargs),
                self._window, self._bounds, self._tapes, self._replicas, self._xla, self._around,
            )  # fmt: skip
        return self._across(*args, **kwargs)

    def concrete(self, *args: Any, **kwargs: Any) -> Any:
        """Return the concrete function that a call with these arguments would run."""
        start = self._state()
        function = self._functions.get(start) or self._functions.setdefault(start, self._traced())
        try:
            return function.get_concrete_function(*args, **kwargs)
        finally:
            self._restore(start)

    def _traced(self) -> Any:
        if self._xla and self._replicas().count > 1:
            raise errors.UnsupportedError(
                f"amp.compile: XLA compiles for one device, and this step spans {self._replicas().count} replicas: each "
                "would need the others' variables; use compile='default' (tf.function) and leave out xla"
            )
        converted = tf.__internal__.autograph.tf_convert(self._fn, tf.__internal__.autograph.control_status_ctx())

        def step(*args: Any, **kwargs: Any) -> dict[int, Any]:
            try:
                result = converted(*args, **kwargs)
            finally:
                self._tapes.drop()
            return {self._end(): result}

        step.__name__ = getattr(self._fn, "__name__", "step")
        return tf.function(step, autograph=False, jit_compile=self._xla or None)

    def _end(self) -> int:
        state = self._state()
        if state not in self._ends:
            self._ends.append(state)
        return self._ends.index(state)

    def _state(self) -> tuple[Any, ...]:
        return (self._window.snapshot(), tuple([bound.snapshot() for bound in self._bounds]))

    def _restore(self, state: tuple[Any, ...]) -> None:
        self._window.restore(state[0])
        for bound, part in zip(self._bounds, state[1], strict=True):
            bound.restore(part)


def _ours(error: BaseException | None) -> errors.AmpError | None:
    """Return the error of ours that AutoGraph wrapped in one of its own."""
    found = None
    while error is not None:
        found = error if isinstance(error, errors.AmpError) else found
        error = error.__cause__ or error.__context__
    return found
