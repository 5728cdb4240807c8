"""Keras's ``fit`` and ``train_on_batch`` on prepared models: how core learns of their steps, and what is refused.

Keras compiles a model's training step, so the Python of ``amp.step`` or of the prepared optimizer does not run with
each step. It calls ``model.train_function`` from Python though, once per step (or per ``steps_per_execution`` of them),
and that function is followed here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import tensorflow as tf

from unifiedamp.backend import errors

from .. import patches
from .._types import Model
from ..distributed.replicas import Replicas
from ..internals import steps_per_execution
from .fit_losses import FitLosses
from .native_steps import NativeSteps
from .optimizers import SCALES_LOSS
from .prepared_optimizer import PreparedOptimizer

MAKER, FIT, RESET = "make_train_function", "fit", "reset_metrics"
ENDS_OF_DATA = (StopIteration, tf.errors.OutOfRangeError)


class Fitting:
    """Follows the train functions of one session's models.

    Args:
        native_steps: reports the steps to core.
        optimizers: the session's prepared optimizers, a list that grows.
    """

    def __init__(self, native_steps: NativeSteps, optimizers: Sequence[PreparedOptimizer]) -> None:
        self._native_steps, self._optimizers = native_steps, optimizers
        self._losses: dict[int, FitLosses] = {}

    def attach(self, model: Model, replicas: Replicas) -> Callable[[], None]:
        """Follow a model from here on; return the function that undoes it."""
        if not hasattr(model, MAKER):
            return lambda: None
        make = getattr(model, MAKER)
        methods: dict[str, Callable[..., Any]] = {
            MAKER: functools.wraps(make)(functools.partial(self._make, model, make))
        }
        if self._native_steps.follower is not None:
            methods[RESET] = functools.partial(self._reset, model, getattr(model, RESET))
        if SCALES_LOSS and replicas.over_workers():
            methods[FIT] = _refuse_workers
        return patches.override_training(model, **methods)

    def _reset(self, model: Model, reset: Callable[[], None]) -> None:
        """Reset the metrics as Keras does: the mean of the losses begins anew."""
        if id(model) in self._losses:
            self._losses[id(model)].restart()
        reset()

    def _make(self, model: Model, make: Callable[..., Any], force: bool = False) -> Any:
        """Make the model's train function as Keras does, and follow it."""
        function: Any = make(force) or model.train_function
        if getattr(function, "followed_by", None) is not self:
            model.train_function = function = self._followed(model, function)
        return function

    def _followed(self, model: Model, function: Callable[..., Any]) -> Callable[..., Any]:
        losses = self._losses.setdefault(id(model), FitLosses())

        @functools.wraps(function)
        def follow(*args: object) -> Any:
            follower = self._native_steps.follower
            for prepared in self._optimizers:
                prepared.check_no_window("model.fit")
            if follower is not None:
                follower.before_step()
            try:
                with self._native_steps.following():
                    logs = function(*args)
            except ENDS_OF_DATA:
                raise
            except BaseException:
                for prepared in self._optimizers:
                    prepared.restart_fit()
                raise
            count = steps_per_execution(model)
            for _ in range(count):
                self._native_steps.after_step()
            if follower is not None:
                loss = losses.add(logs, count)
                for _ in range(count):
                    follower.native_step(loss)
            return logs

        follow.followed_by = self  # type: ignore[attr-defined]  # read back by _make
        return follow


def _refuse_workers(*_args: object, **_options: object) -> NoReturn:
    raise errors.UnsupportedError(
        "model.fit: Keras 3 does not run it under a MultiWorkerMirroredStrategy (it fails on the workers' batches, "
        "without unifiedamp too); write the loop with amp.compile and strategy.run, or use Keras 2"
    )
