"""``amp.compile``: ``tf.function`` over a whole step, with the Python state of each trace restored after each call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from unifiedamp.backend import SessionSpec, StepOrderState, StepResult, Switches, WrappedStep, errors

from .. import patches
from ..distributed.distributed import TensorFlowDistributed
from ..distributed.replica_programs import ReplicaPrograms
from ..precision.autocast import thread
from ..precision.modes import Mode
from ..recording.recorder import TensorFlowRecorder
from ..recording.trace_record import TraceRecord
from ..training.prepared_objects import PreparedObjects
from ..training.step_tracing import StepTracing
from .retraces import Traces

patches.exempt_from_autograph()

NOT_BY_XLA = (
    "amp.compile: XLA cannot compile the replicas' programs of {}, which runs as tf.function runs it: {}; call "
    "strategy.run directly in the step that amp.compile compiles, without tf.function inside, and compute all "
    "gradients before the first step"
)


@dataclass(frozen=True)
class CompileContext:
    """What compiling needs of the session.

    Attributes:
        spec: the session's.
        mode: how TensorFlow mixes precision.
        switches: process-wide settings that hold while a step runs.
        distributed: its replicas.
        prepared: its models and optimizers.
        recorder: its recorder.
        tracing: whether a compiled step is being traced.
    """

    spec: SessionSpec
    mode: Mode
    switches: Switches
    distributed: TensorFlowDistributed
    prepared: PreparedObjects
    recorder: TensorFlowRecorder
    tracing: StepTracing


class CompiledStep:
    """A traced step.

    Python runs while tracing only, so the order of calls at entry picks the trace (an accumulating micro-step and the
    one at the boundary are two), as do the layers that train, and the order of calls in which the trace ended is
    restored after each call. Which of its traces a ``tf.function`` replayed is known by its output structure, which
    costs nothing: results come back under a key that stands for the end state.

    Over several replicas XLA compiles a program for each, and ``tf.function`` runs the rest.

    Without XLA, a second shape of an argument is traced with that dimension left open, and serves all further ones; a
    step that cannot be traced so (it needs a size as a number) is traced for each shape. XLA compiles for each shape.

    Recorded calls have separate traces, which also return what they recorded.

    Args:
        fn: the user's step.
        order: core's order of calls.
        context: the session's part.
        xla: compile by XLA.
    """

    def __init__(self, fn: Callable[..., Any], order: StepOrderState, context: CompileContext, xla: bool) -> None:
        functools.update_wrapper(self, fn, updated=())
        self._fn = fn if not isinstance(fn, tf.Module) else functools.partial(fn)
        self._order, self._context, self._xla = order, context, xla
        self._around = _around(context.mode.around_call(), context.switches)
        self._signature = _signature(self._fn)
        self._traces = Traces(_name(fn), xla, lambda text: context.spec.warn(text, errors.CompileWarning))
        self._functions: dict[Any, Any] = {}
        self._ends: list[Any] = []
        self._records: list[TraceRecord] = []
        self._loosened = self._needs_sizes = False
        self._across: CompiledStep | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step."""
        replicas = self._context.distributed.replicas
        if replicas.calling():
            return replicas.together(self._over_replicas, args, kwargs)
        start, traced, recorder = self._start(), self._traces.count, self._context.recorder.current
        function = self._functions.get(start) or self._new_function(start)
        if recorder is not None:
            recorder.begin_trace()
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
            ours = _amp_error(error)
            if ours is None or ours is error:
                raise
            raise ours from None
        ((end, (result, recorded)),) = output.items()
        ended = self._ends[end]
        if ended != start[0] or traced != self._traces.count:
            self._restore(ended)
        if recorder is not None:
            recorder.take(recorded, self._records)
        return result

    def _over_replicas(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step of all replicas in one trace: TensorFlow cannot sum over them from within separate ones."""
        if self._across is None:
            strategy = tf.distribute.get_strategy()

            def whole(*args: Any, **kwargs: Any) -> Any:
                step = _converted(self._fn) if isinstance(self._fn, WrappedStep) else self._fn
                return strategy.run(step, args, kwargs)

            whole.__name__ = _name(self._fn)
            whole.__signature__ = self._signature  # type: ignore[attr-defined]  # inspect reads it
            self._across = CompiledStep(whole, self._order, self._context, self._xla)
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
        converted = _converted(self._fn)

        def step(*args: Any, **kwargs: Any) -> dict[int, Any]:
            arguments = self._arguments(args, kwargs)
            self._loosened = reduce_retracing and _open_shapes(arguments)
            outputs = self._traced(converted, args, kwargs)
            self._loosened = False
            self._traces.note(start, arguments)
            return {self._end(): outputs}

        step.__name__ = _name(self._fn)
        if self._signature is not None:
            step.__signature__ = self._signature  # type: ignore[attr-defined]  # inspect reads it
        function = self._functions[start] = tf.function(
            step, autograph=False, jit_compile=self._whole_by_xla() or None, reduce_retracing=reduce_retracing
        )
        return function

    def _whole_by_xla(self) -> bool:
        return self._xla and self._context.distributed.replicas.count == 1

    def _traced(self, step: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run the step's Python once; return its result and what was recorded."""
        if self._xla and not self._whole_by_xla():
            return self._by_replica(step, args, kwargs)
        return self._recorded(step, args, kwargs, None)

    def _by_replica(self, step: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Trace a step of which XLA compiles a program for each replica."""
        programs = ReplicaPrograms(self._context.distributed.replicas.device)
        with programs.assigning():
            outputs = self._recorded(step, args, kwargs, programs)
            sealed = programs.seal(outputs)
        if programs.missed:
            self._context.spec.warn(NOT_BY_XLA.format(_name(self._fn), programs.missed), errors.CompileWarning)
        return sealed

    def _recorded(self, step: Callable[..., Any], args: Any, kwargs: Any, programs: ReplicaPrograms | None) -> Any:
        recorder = self._context.recorder.current
        records = nullcontext() if recorder is None else recorder.tracing(self._records)
        with self._context.tracing.trace(programs), records as recorded:
            result = step(*args, **kwargs)
        if any(isinstance(value, StepResult) for value in tf.nest.flatten(result)):
            raise errors.StepOrderError(
                f"amp.compile: {_name(self._fn)}() returns the result of amp.step, which a compiled step cannot: look "
                "at amp.loss_scale, amp.applied_steps and amp.skipped_steps after the call"
            )
        return result, recorded

    def _settle_xla(self) -> None:
        try:
            self._context.mode.check_xla()
        except errors.AmpError:
            if not self._context.spec.tuning.best_effort:
                raise
            self._xla = False

    def _arguments(self, args: Any, kwargs: Any) -> Mapping[str, Any]:
        if self._signature is None:
            return {**{f"argument {index}": value for index, value in enumerate(args)}, **kwargs}
        return self._signature.bind(*args, **kwargs).arguments

    # -- the order of calls --------------------------------------------------------------------------------------

    def _start(self) -> tuple[Any, ...]:
        """Return what picks a trace: order of calls, layers that train, averages, what is recorded, region, policy."""
        recorder = self._context.recorder.current
        recorded = recorder is not None and recorder.key
        prepared = self._context.prepared
        followed = tuple([each.followers for each in prepared.optimizers])
        region, policy = (thread.compute, thread.training), self._context.spec.policy
        return self._state(), prepared.trainability.key(), followed, recorded, region, policy

    def _end(self) -> int:
        state = self._state()
        if state not in self._ends:
            self._ends.append(state)
        return self._ends.index(state)

    def _state(self) -> tuple[Any, ...]:
        return (self._order.snapshot(), *[prepared.snapshot() for prepared in self._context.prepared.optimizers])

    def _restore(self, state: tuple[Any, ...]) -> None:
        self._order.restore(state[0])
        for prepared, part in zip(self._context.prepared.optimizers, state[1:], strict=True):
            prepared.restore(part)


def _around(mode: Callable[[], Any] | None, switches: Switches) -> Callable[[], AbstractContextManager[Any]] | None:
    """Return what makes a context for each call; None where none is needed."""
    if not switches:
        return mode
    if mode is None:
        return lambda: switches

    @contextmanager
    def both() -> Iterator[None]:
        with switches, mode():
            yield

    return both


def _converted(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step as AutoGraph rewrites it; of one that core has wrapped, the user's part alone."""
    if isinstance(fn, WrappedStep):
        return fn.around(_converted(fn.step))
    converted: Callable[..., Any] = tf.__internal__.autograph.tf_convert(
        fn, tf.__internal__.autograph.control_status_ctx()
    )
    return converted


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


def _amp_error(error: BaseException | None) -> errors.AmpError | None:
    """Return the ``AmpError`` that AutoGraph wrapped in an exception of TensorFlow's."""
    found = None
    while error is not None:
        found = error if isinstance(error, errors.AmpError) else found
        error = error.__cause__ or error.__context__
    return found
