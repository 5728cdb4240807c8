"""Recorded steps of Keras's ``fit``: a separate train function of one step, which also returns what was recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import tensorflow as tf

from unifiedamp.backend import errors

from .. import patches
from .._types import Model
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
    """

    def __init__(self, recorder: TensorFlowRecorder, prepared: PreparedObjects) -> None:
        self._recorder, self._prepared = recorder, prepared

    def _replicas(self) -> int:
        return max((prepared.replicas.count for prepared in self._prepared.optimizers), default=1)

    def armed(self) -> bool:
        """Whether the next step is to be recorded."""
        return self._recorder.current is not None

    def single_steps(self, model: Model, make: Callable[..., Any]) -> Callable[..., Any]:
        """Return a train function of one step per call, recorded while :meth:`armed`.

        Args:
            model: whose function.
            make: Keras's ``make_train_function`` of it.

        Raises:
            UnsupportedError: the model is on several replicas, whose numbers Keras would add up.
        """
        count = self._replicas()
        if count > 1:
            raise errors.UnsupportedError(
                f"model.fit: the model is spread over {count} replicas of a tf.distribute strategy, and Keras adds up "
                "what a step returns on each; record a loop with amp.compile and strategy.run, or fit on one device"
            )
        return SingleSteps(self._recorder, self._prepared, model, make)


class SingleSteps:
    """A train function of one step per call; steps that are recorded have separate traces."""

    def __init__(
        self, recorder: TensorFlowRecorder, prepared: PreparedObjects, model: Model, make: Callable[..., Any]
    ) -> None:
        self._recorder, self._prepared, self._model, self._make = recorder, prepared, model, make
        self._train_step = model.train_step
        self._functions: dict[str | None, Any] = {}
        self._records: list[TraceRecord] = []

    def __call__(self, *args: Any) -> Any:
        """Run one step; return its logs."""
        current = self._recorder.current
        key = None if current is None else current.key
        if current is not None:
            current.begin_trace()
        with patches.attributes(self._model, **SINGLE_STEPS), self._step_of(current):
            function = self._functions.get(key) or self._new_function(key)
            outputs = function(*args)
        if current is None:
            return outputs
        current.take(outputs[RECORDED], self._records)
        return outputs[LOGS]

    def _step_of(self, current: StepRecorder | StepCounter | None) -> AbstractContextManager[None]:
        return nullcontext() if current is None else patches.attributes(self._model, train_step=self._recorded_step)

    def _new_function(self, key: str | None) -> Any:
        with patches.attributes(self._model, train_function=None, train_tf_function=None):
            function = self._functions[key] = self._make(True) or self._model.train_function
        return function

    def _recorded_step(self, data: Any) -> dict[str, Any]:
        """Run the model's ``train_step``, and return what was recorded beside its logs."""
        current = self._recorder.current
        assert current is not None
        autograph = tf.__internal__.autograph
        step = autograph.tf_convert(self._train_step, autograph.control_status_ctx(), convert_by_default=False)
        with current.tracing(self._records) as recorded, self._noting(current):
            logs = step(data)
        return {LOGS: logs, RECORDED: recorded}

    @contextmanager
    def _noting(self, current: StepRecorder | StepCounter) -> Iterator[None]:
        """Record activations, and the gradients of optimizers that the session did not need to wrap."""
        with ExitStack() as stack:
            for prepared in self._prepared.optimizers:
                if prepared.outer is prepared.inner:
                    stack.enter_context(NotedOptimizer(prepared.params, current).noting())
            current.fitting = True
            try:
                yield
            finally:
                current.fitting = False
