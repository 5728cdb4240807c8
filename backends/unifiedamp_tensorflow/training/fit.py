"""Keras's ``fit`` and ``train_on_batch`` on prepared models: what core is told of their steps, and what is refused.

Keras compiles a model's training step, so the Python of ``amp.step`` or of the prepared optimizer does not run with
each step. It calls ``model.train_function`` from Python though, once per step (or per ``steps_per_execution`` of them),
and that function is followed here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from unifiedamp.backend import errors

from ..distributed.replicas import Alone, Mirrored
from .fit_events import Told
from .optimizers import SCALES_LOSS
from .prepared_optimizer import Bound

MAKER, FIT = "make_train_function", "fit"
ENDS_OF_DATA = (StopIteration, tf.errors.OutOfRangeError)


class Fitting:
    """Follows the train functions of one session's models.

    Args:
        told: what core is told by.
        bounds: the session's prepared optimizers, a list that grows.
    """

    def __init__(self, told: Told, bounds: Sequence[Bound]) -> None:
        self._told, self._bounds = told, bounds

    def attach(self, model: Any, replicas: Alone) -> Callable[[], None]:
        """Follow a model from here on; return what takes that back."""
        if not hasattr(model, MAKER):
            return lambda: None
        found = {name: vars(model)[name] for name in (MAKER, FIT) if name in vars(model)}
        make = getattr(model, MAKER)
        vars(model)[MAKER] = functools.wraps(make)(functools.partial(self._make, model, make))
        if SCALES_LOSS and isinstance(replicas, Mirrored) and replicas.over_workers():
            vars(model)[FIT] = _refuse_workers

        def detach() -> None:
            for name in (MAKER, FIT):
                vars(model).pop(name, None)
            vars(model).update(found)
            model.train_function = None

        return detach

    def _make(self, model: Any, make: Callable[..., Any], force: bool = False) -> Any:
        """Make the model's train function as Keras does, and follow it."""
        function = make(force) or model.train_function
        if getattr(function, "followed_by", None) is not self:
            model.train_function = function = self._followed(model, function)
        return function

    def _followed(self, model: Any, function: Callable[..., Any]) -> Any:
        @functools.wraps(function)
        def follow(*args: Any) -> Any:
            for bound in self._bounds:
                bound.check_no_window("model.fit")
            try:
                with self._told.following():
                    logs = function(*args)
            except ENDS_OF_DATA:
                raise
            except BaseException:
                for bound in self._bounds:
                    bound.restart()
                raise
            for _ in range(_steps(model)):
                self._told.after_step()
            return logs

        follow.followed_by = self  # type: ignore[attr-defined]
        return follow


def _steps(model: Any) -> int:
    """Return how many steps a call of the model's train function runs."""
    steps = getattr(model, "_steps_per_execution", None)
    if isinstance(steps, tf.Variable):  # Keras 2
        return int(steps.numpy())
    return int(getattr(model, "steps_per_execution", 1) or 1)


def _refuse_workers(*_args: Any, **_options: Any) -> Any:
    raise errors.UnsupportedError(
        "model.fit: Keras 3 does not run it under a MultiWorkerMirroredStrategy (it fails on the workers' batches, "
        "without unifiedamp too); write the loop with amp.compile and strategy.run, or use Keras 2"
    )
