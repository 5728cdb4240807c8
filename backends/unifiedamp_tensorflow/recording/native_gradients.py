"""The gradients that ``fit`` gives an optimizer of Keras's own, which a session without a loss scale does not wrap."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from .. import patches
from .._types import Gradient, Tensor, Variable
from ..internals import trained_variables
from ..training.trained_variables import TrainedVariables
from .step_counter import StepCounter
from .step_recorder import StepRecorder

CALLS = ("apply", "scale_loss", "apply_gradients", "minimize")


class NotedOptimizer:
    """Calls of an optimizer that are recorded before they are passed on.

    Args:
        params: what the optimizer trains.
        recorder: gets the gradients and the loss.
    """

    def __init__(self, params: TrainedVariables, recorder: StepRecorder | StepCounter) -> None:
        self._params, self._recorder = params, recorder
        optimizer: Any = params.optimizer
        self._native = {name: getattr(optimizer, name) for name in CALLS if hasattr(optimizer, name)}
        self._loss: Tensor | None = None

    def noting(self) -> AbstractContextManager[None]:
        """Return a context in which the optimizer's calls are recorded."""
        ours = ("apply", "scale_loss") if "scale_loss" in self._native else ("apply_gradients", "minimize")
        return patches.attributes(self._params.optimizer, **{name: getattr(self, name) for name in ours})

    def _note(self, pairs: Iterable[tuple[Gradient | None, Variable]]) -> None:
        named = {self._params.name_of(variable): gradient for gradient, variable in pairs if gradient is not None}
        gradients = {name: gradient for name, gradient in named.items() if name is not None}
        self._recorder.gradients(gradients, None, self._loss)

    # -- Keras 3 -------------------------------------------------------------------------------------------------

    def scale_loss(self, loss: Tensor) -> Any:
        """See ``keras.Optimizer.scale_loss``."""
        self._loss = loss
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
        self._loss = None if callable(loss) else loss
        return self._native["minimize"](loss, *args, **options)

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **options: Any) -> Any:
        """See ``tf.keras.optimizers.Optimizer.apply_gradients``."""
        pairs = list(grads_and_vars)
        self._note(pairs)
        return self._native["apply_gradients"](pairs, *args, **options)
