"""Recorded steps of Keras's ``fit``: a separate train function of one step, which also returns what was recorded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorflow as tf

from .. import patches
from .._types import Model, Tensor
from ..distributed.distributed import TensorFlowDistributed
from ..distributed.replicas import Replicas
from ..internals import SINGLE_STEPS
from ..training.prepared_objects import PreparedObjects
from .native_gradients import NotedOptimizer
from .recorder import TensorFlowRecorder
from .step_counter import StepCounter
from .step_recorder import StepRecorder
from .trace_record import TraceRecord

LOGS, RECORDED = "logs", "recorded"


class FitRecorder:
    """Makes train functions whose steps are recorded.

    Args:
        recorder: the session's.
        prepared: its optimizers.
        distributed: its replicas.
    """

    def __init__(
        self, recorder: TensorFlowRecorder, prepared: PreparedObjects, distributed: TensorFlowDistributed
    ) -> None:
        self._recorder, self._prepared, self._distributed = recorder, prepared, distributed

    def armed(self) -> bool:
        """Whether the next step is to be recorded."""
        return self._recorder.current is not None

    def single_steps(self, model: Model, make: Callable[..., Any]) -> Callable[..., Any]:
        """Return a train function of one step per call, recorded while :meth:`armed`.

        Args:
            model: whose function.
            make: Keras's ``make_train_function`` of it.
        """
        return SingleSteps(self._recorder, self._prepared, self._distributed.replicas, model, make)


class SingleSteps:
    """A train function of one step per call; steps that are recorded have separate traces.

    Keras runs the model's ``train_step`` on each replica and adds up what these return. A step has one record for all
    replicas of a process, which they begin and end together; each returns all of it, and Keras adds up no tensor that
    is the same on all. Over workers it adds up every tensor, see :func:`_unreduced`.
    """

    def __init__(
        self, recorder: TensorFlowRecorder, prepared: PreparedObjects, replicas: Replicas, model: Model,
        make: Callable[..., Any],
    ) -> None:  # fmt: skip
        self._recorder, self._prepared, self._replicas, self._model = recorder, prepared, replicas, model
        self._make, self._train_step = make, model.train_step
        self._functions: dict[str | None, Any] = {}
        self._records: list[TraceRecord] = []
        self._trace = ExitStack()
        self._recorded: Mapping[int, Mapping[str, Tensor]] = {}

    def __call__(self, *args: Any) -> Any:
        """Run one step; return its logs."""
        current = self._recorder.current
        if current is None:
            return self._run(None, args)
        current.begin_trace()
        with self._noting(current), patches.attributes(self._model, train_step=self._recorded_step):
            outputs = self._run(current.key, args)
        current.take(outputs[RECORDED], self._records)
        return outputs[LOGS]

    def _run(self, key: str | None, args: tuple[Any, ...]) -> Any:
        with patches.attributes(self._model, **SINGLE_STEPS):
            function = self._functions.get(key) or self._new_function(key)
            return function(*args)

    def _new_function(self, key: str | None) -> Any:
        with patches.attributes(self._model, train_function=None, train_tf_function=None):
            function = self._functions[key] = self._make(True) or self._model.train_function
        return function

    def _recorded_step(self, data: Any) -> dict[str, Any]:
        """Run the model's ``train_step``, and return what was recorded beside its logs."""
        autograph = tf.__internal__.autograph
        step = autograph.tf_convert(self._train_step, autograph.control_status_ctx(), convert_by_default=False)
        self._replicas.once(self._begin_trace)
        logs = step(data)
        return {LOGS: logs, RECORDED: self._replicas.once(self._end_trace)}

    def _begin_trace(self) -> None:
        current = self._recorder.current
        assert current is not None
        self._recorded = self._trace.enter_context(current.tracing(self._records))

    def _end_trace(self) -> Mapping[int, Mapping[str, Tensor]]:
        self._trace.close()
        return self._recorded

    @contextmanager
    def _noting(self, current: StepRecorder | StepCounter) -> Iterator[None]:
        """Record activations, and the gradients of optimizers that the session did not need to wrap."""
        with ExitStack() as stack, ExitStack() as self._trace:  # which a step that fails leaves open
            if self._replicas.over_workers():
                stack.enter_context(_unreduced())
            for prepared in self._prepared.optimizers:
                if prepared.outer is prepared.inner:
                    stack.enter_context(NotedOptimizer(prepared.params, current, self._replicas).noting())
            current.fitting = True
            try:
                yield
            finally:
                current.fitting = False


@contextmanager
def _unreduced() -> Iterator[None]:
    """Let Keras 2 reduce the logs of a step over workers, but not what was recorded: each worker's is for itself."""
    keras = sys.modules[tf.keras.Model.make_train_function.__module__]
    native = keras.reduce_per_replica

    def reduce(values: Any, *options: Any, **named: Any) -> Any:
        if not (isinstance(values, dict) and RECORDED in values):
            return native(values, *options, **named)
        return {LOGS: native(values[LOGS], *options, **named), RECORDED: values[RECORDED]}

    with patches.attributes(keras, reduce_per_replica=reduce):
        yield
