"""The gradients that ``fit`` gives an optimizer of Keras's own, which a session without a loss scale does not wrap."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from .. import patches
from .._types import Gradient, Tensor, Variable
from ..distributed.replicas import Replicas
from ..internals import trained_variables
from ..training.trained_variables import TrainedVariables
from .step_counter import StepCounter
from .step_recorder import StepRecorder

KERAS_3, KERAS_2 = ("apply", "scale_loss"), ("apply_gradients", "minimize")
SUMMING = (patches.SUMMING, "aggregate_gradients")
"""The method that sums gradients over replicas: Keras 3's, Keras 2's."""


class NotedOptimizer:
    """Calls of an optimizer that are recorded before they are passed on.

    Args:
        params: what the optimizer trains.
        recorder: gets the gradients and the loss.
        replicas: where the model trains.
    """

    def __init__(self, params: TrainedVariables, recorder: StepRecorder | StepCounter, replicas: Replicas) -> None:
        self._params, self._recorder, self._replicas = params, recorder, replicas
        optimizer: Any = params.optimizer
        names = (*KERAS_3, *KERAS_2, *SUMMING)
        self._native = {name: getattr(optimizer, name) for name in names if hasattr(optimizer, name)}
        self._losses: dict[int, Tensor | None] = {}

    def noting(self) -> AbstractContextManager[None]:
        """Return a context in which the optimizer's calls are recorded."""
        ours = {name: getattr(self, name) for name in (KERAS_3 if "scale_loss" in self._native else KERAS_2)}
        if self._replicas.count > 1:
            ours |= {name: functools.partial(self._sum, name) for name in SUMMING if name in self._native}
        return patches.attributes(self._params.optimizer, **ours)

    def _sum(self, name: str, pairs: Any) -> Any:
        sums = list(self._native[name](pairs))
        if isinstance(self._recorder, StepRecorder):
            self._recorder.reduced(self._named(sums))
        return sums

    def _named(self, pairs: Iterable[tuple[Gradient | None, Variable]]) -> dict[str, Gradient]:
        named = {self._params.name_of(variable): gradient for gradient, variable in pairs if gradient is not None}
        return {name: gradient for name, gradient in named.items() if name is not None}

    def _note_loss(self, loss: Tensor | None) -> None:
        self._losses[self._replicas.here()] = loss

    def _note(self, pairs: Iterable[tuple[Gradient | None, Variable]]) -> None:
        self._recorder.gradients(self._named(pairs), None, self._losses.get(self._replicas.here()))

    # -- Keras 3 -------------------------------------------------------------------------------------------------

    def scale_loss(self, loss: Tensor) -> Any:
        """See ``keras.Optimizer.scale_loss``."""
        self._note_loss(loss)
        return self._native["scale_loss"](loss)

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """See ``keras.Optimizer.apply``."""
        variables = trainable_variables
        if variables is None:
            variables = trained_variables(self._params.optimizer) or ()
        self._note(zip(grads, variables, strict=True))
        return self._native["apply"](grads, trainable_variables)

    # -- Keras 2 -------------------------------------------------------------------------------------------------

    def minimize(self, loss: Any, *args: Any, **options: Any) -> Any:
        """See ``tf.keras.optimizers.Optimizer.minimize``."""
        self._note_loss(None if callable(loss) else loss)
        return self._native["minimize"](loss, *args, **options)

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **options: Any) -> Any:
        """See ``tf.keras.optimizers.Optimizer.apply_gradients``."""
        pairs = list(grads_and_vars)
        self._note(pairs)
        return self._native["apply_gradients"](pairs, *args, **options)
