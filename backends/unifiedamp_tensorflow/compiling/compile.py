"""``amp.compile``: ``tf.function`` over a whole step, with the Python state of each trace put back after each call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.autograph.core import config

from unifiedamp.backend import CallState, Switches, errors

from ..precision.autocast import thread
from ..recording.recorder import Page
from .retraces import Traces

if TYPE_CHECKING:
    from ..backend import TensorFlowBackend


def _leave_unconverted() -> None:
    """Keep AutoGraph from rewriting unifiedamp's own Python, which decides while tracing."""
    rules = [config.DoNotConvert(name) for name in ("unifiedamp", __name__.partition(".")[0])]
    config.CONVERSION_RULES = (*rules, *config.CONVERSION_RULES)


_leave_unconverted()


class CompiledStep:
    """A traced step.

    Python runs while tracing only, so the order of calls at entry picks the trace (an accumulating micro-step and the
    one at the boundary are two), as do the layers that train, and the order of calls that the trace ended in is put
    back after each call. Which of its traces a ``tf.function`` replayed is told by its output structure, which costs
    nothing: results come back under a key that stands for the end state.

    Without XLA, a second shape of an argument is traced with that dimension left open, and serves all further ones; a
    step that cannot be traced so (it needs a size as a number) is traced for each shape. XLA compiles for each shape.

    A call that is recorded has traces of its own, which return what they noted besides.

    Args:
        fn: the user's step.
        window: core's order of calls.
        backend: the session's.
        xla: compile by XLA.
    """

    def __init__(self, fn: Callable[..., Any], window: CallState, backend: TensorFlowBackend, xla: bool) -> None:
        functools.update_wrapper(self, fn, updated=())
        self._fn = fn if not isinstance(fn, tf.Module) else functools.partial(fn)
        self._window, self._backend, self._xla = window, backend, xla
        self._around = _around(backend.mode.around_call(), backend.tuned.switches)
        self._signature = _signature(self._fn)
        self._traces = Traces(_name(fn), xla, lambda text: backend.spec.warn(text, errors.CompileWarning))
        self._functions: dict[Any, Any] = {}
        self._ends: list[Any] = []
        self._pages: list[Page] = []
        self._loosened = self._needs_sizes = False
        self._across: CompiledStep | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step."""
        replicas = self._backend.replicas
        if replicas.calling():
            return replicas.together(self._over_replicas, args, kwargs)
        start, traced, notes = self._start(), self._traces.count, self._backend.notes
        function = self._functions.get(start) or self._new_function(start)
        try:
            if self._around is None:
                output = function(*args, **kwargs)
            else:
                with self._around():
                    output = function(*args, **kwargs)
        except Exception as error:
            self._restore(start[0])
            if self._loosened:
                self._loosened, self._needs_sizes = False, True
                self._functions.clear()
                return self(*args, **kwargs)
            ours = _ours(error)
            if ours is None or ours is error:
                raise
            raise ours from None
        ((end, (result, noted)),) = output.items()
        ended = self._ends[end]
        if ended != start[0] or traced != self._traces.count:
            self._restore(ended)
        if notes is not None:
            notes.take(noted, self._pages)
        return result

    def _over_replicas(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step of all replicas in one trace: TensorFlow cannot sum over them from within separate ones."""
        if self._across is None:
            strategy = tf.distribute.get_strategy()

            def whole(*args: Any, **kwargs: Any) -> Any:
                return strategy.run(self._fn, args, kwargs)

            whole.__name__ = _name(self._fn)
            whole.__signature__ = self._signature  # type: ignore[attr-defined]
            self._across = CompiledStep(whole, self._window, self._backend, self._xla)
        return self._across(*args, **kwargs)

    def concrete(self, *args: Any, **kwargs: Any) -> Any:
        """Return the concrete function that a call with these arguments would run."""
        start = self._start()
        function = self._functions.get(start) or self._new_function(start)
        try:
            return function.get_concrete_function(*args, **kwargs)
        finally:
            self._restore(start[0])

    # -- tracing -------------------------------------------------------------------------------------------------

    def _new_function(self, start: Any) -> Any:
        if self._xla:
            self._settle_xla()
        reduce_retracing = not (self._xla or self._needs_sizes)
        converted = tf.__internal__.autograph.tf_convert(self._fn, tf.__internal__.autograph.control_status_ctx())

        def step(*args: Any, **kwargs: Any) -> dict[int, Any]:
            arguments = self._arguments(args, kwargs)
            self._loosened = reduce_retracing and _open_shapes(arguments)
            notes = self._backend.notes
            with self._backend.compiling(), nullcontext() if notes is None else notes.tracing(self._pages) as noted:
                result = converted(*args, **kwargs)
            self._loosened = False
            self._traces.note(start, arguments)
            return {self._end(): (result, noted)}

        step.__name__ = _name(self._fn)
        if self._signature is not None:
            step.__signature__ = self._signature  # type: ignore[attr-defined]
        function = self._functions[start] = tf.function(
            step, autograph=False, jit_compile=self._xla or None, reduce_retracing=reduce_retracing
        )
        return function

    def _settle_xla(self) -> None:
        try:
            self._check_xla()
        except errors.AmpError:
            if not self._backend.spec.tuning.best_effort:
                raise
            self._xla = False

    def _check_xla(self) -> None:
        self._backend.mode.check_xla()
        count = self._backend.replicas.count
        if count > 1:
            raise errors.UnsupportedError(
                f"amp.compile: XLA compiles for one device, and this step spans {count} replicas, each of which would "
                "need the others' variables; use compile='default' (tf.function) and leave out xla"
            )

    def _arguments(self, args: Any, kwargs: Any) -> Mapping[str, Any]:
        if self._signature is None:
            return {**{f"argument {index}": value for index, value in enumerate(args)}, **kwargs}
        return self._signature.bind(*args, **kwargs).arguments

    # -- the order of calls --------------------------------------------------------------------------------------

    def _start(self) -> tuple[Any, ...]:
        """Return what picks a trace: the order of calls, which layers train, what is noted, the region around it."""
        notes = self._backend.notes
        noted = notes is not None and notes.key
        return self._state(), self._backend.trainability.key(), noted, thread.compute, thread.training

    def _end(self) -> int:
        state = self._state()
        if state not in self._ends:
            self._ends.append(state)
        return self._ends.index(state)

    def _state(self) -> tuple[Any, ...]:
        return (self._window.snapshot(), *[bound.snapshot() for bound in self._backend.bounds])

    def _restore(self, state: tuple[Any, ...]) -> None:
        self._window.restore(state[0])
        for bound, part in zip(self._backend.bounds, state[1:], strict=True):
            bound.restore(part)


def _around(mode: Callable[[], Any] | None, switches: Switches) -> Callable[[], Any] | None:
    """Return what makes a context for each call; None where nothing is to be held."""
    if not switches:
        return mode
    if mode is None:
        return lambda: switches

    @contextmanager
    def both() -> Iterator[None]:
        with switches, mode():
            yield

    return both


def _signature(fn: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):
        return None


def _name(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__name__", "step")).strip("<>")


def _open_shapes(arguments: Mapping[str, Any]) -> bool:
    leaves = tf.nest.flatten(dict(arguments), expand_composites=True)
    return any(isinstance(leaf, tf.Tensor) and not leaf.shape.is_fully_defined() for leaf in leaves)


def _ours(error: BaseException | None) -> errors.AmpError | None:
    """Return the error of ours that AutoGraph wrapped in one of its own."""
    found = None
    while error is not None:
        found = error if isinstance(error, errors.AmpError) else found
        error = error.__cause__ or error.__context__
    return found
