"""Keras's ``fit`` and ``train_on_batch`` on prepared models: how core learns of their steps, and what is refused.

Keras compiles a model's training step, so the Python of ``amp.step`` or of the prepared optimizer does not run with
each step. It calls ``model.train_function`` from Python though, once per step (or per ``steps_per_execution`` of them),
and that function is followed here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import tensorflow as tf

from unifiedamp.backend import SessionSpec, errors

from .. import patches
from .._types import Model
from ..distributed.replicas import Replicas
from ..internals import epoch_logs_method, steps_per_execution, uses_xla
from .fit_losses import FitLosses
from .fit_optimizer import check_fit, refuse_given
from .fit_run import FitRun
from .fit_window import FitWindow
from .native_steps import NativeSteps
from .optimizers import SCALES_LOSS
from .prepared_objects import PreparedObjects
from .scaler import DeviceScaler

MAKER, FIT, RESET, COMPILE = "make_train_function", "fit", "reset_metrics", "compile"
ENDS_OF_DATA = (StopIteration, tf.errors.OutOfRangeError)


class RecordsSteps(Protocol):
    """Records single steps of ``fit``."""

    def armed(self) -> bool:
        """Whether the next step is to be recorded."""

    def single_steps(self, model: Model, make: Callable[..., Any]) -> Callable[..., Any]:
        """Return a train function of one step per call, recorded while :meth:`armed`."""


class Fitting:
    """Follows the train functions of one session's models.

    Args:
        spec: the session's, whose policy train functions are made for.
        native_steps: reports the steps to core.
        prepared: the session's models and optimizers.
        scaler: its loss scale; None without one.
        recorder: records steps.
    """

    def __init__(
        self, spec: SessionSpec, native_steps: NativeSteps, prepared: PreparedObjects, scaler: DeviceScaler | None,
        recorder: RecordsSteps,
    ) -> None:  # fmt: skip
        self._spec = spec
        self._native_steps, self._prepared, self._scaler, self._recorder = native_steps, prepared, scaler, recorder
        self._runs: dict[int, list[FitRun]] = {}
        self._losses: dict[int, FitLosses] = {}
        self._layouts: dict[int, tuple[int, ...]] = {}
        self._due = False

    def attach(self, model: Model, replicas: Replicas) -> Callable[[], None]:
        """Follow a model from here on; return the function that undoes it."""
        if not hasattr(model, MAKER):
            return lambda: None
        methods: dict[str, Callable[..., Any]] = {MAKER: self._make, FIT: self._fit, COMPILE: self._compile}
        if replicas.count > 1:
            methods[MAKER] = self._make_over_replicas
        if self._native_steps.follower is not None:
            methods[RESET] = self._reset
        if SCALES_LOSS and replicas.over_workers():
            methods[FIT] = _refuse_workers
        epoch_logs = epoch_logs_method(model)
        if epoch_logs is not None:
            methods[epoch_logs] = self._epoch_logs
        bound = {name: _bound(method, model, name) for name, method in methods.items()}
        return patches.override_training(model, **bound)

    def stop(self) -> None:
        """Report nothing from here on."""
        self._native_steps.stop()

    def run_of(self, model: Model) -> FitRun | None:
        """Return the call of the model's ``fit`` that is running; None for none."""
        runs = self._runs.get(id(model))
        return runs[-1] if runs else None

    # -- the methods of a model ----------------------------------------------------------------------------------

    def _stands_aside(self, model: Model) -> bool:
        """Whether the model is compiled with an optimizer of another session, which follows it then."""
        return self._prepared.is_elsewhere(getattr(model, "optimizer", None))

    def _fit(self, model: Model, fit: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if self._stands_aside(model):
            return fit(*args, **options)
        run, runs = FitRun(self._scaler), self._runs.setdefault(id(model), [])
        window = self._window_of(model)
        if window is not None:
            window.resume()  # a checkpoint of TensorFlow's may have been restored since, which calls no Python
        runs.append(run)
        try:
            return fit(*args, **options)
        except BaseException as error:
            run.fail(error)
            raise
        finally:
            runs.remove(run)

    def _compile(self, _model: Model, compile_: Callable[..., Any], *args: Any, **options: Any) -> Any:
        refuse_given(args[0] if args else options.get("optimizer"), self._prepared.optimizers)
        return compile_(*args, **options)

    def _epoch_logs(self, model: Model, make: Callable[..., Any], logs: Any) -> Any:
        run = self.run_of(model)
        return make(logs) if run is None else run.epoch_logs(make, logs)

    def _reset(self, model: Model, reset: Callable[[], None]) -> None:
        """Reset the metrics as Keras does: the mean of the losses begins anew."""
        self._losses.setdefault(id(model), FitLosses()).restart()
        reset()

    def _make(self, model: Model, make: Callable[..., Any], force: bool = False) -> Any:
        """Make the model's train function as Keras does, and follow it."""
        if self._stands_aside(model):
            return make(force) or model.train_function
        check_fit(model, self._prepared.optimizers, self._spec)
        layout = self._prepared.trainability.layout()
        if self._layouts.setdefault(id(model), layout) != layout:
            self._prepared.trainability.check()
            self._layouts[id(model)] = self._prepared.trainability.layout()
            force = True  # Keras would run the function of the model that was
        function: Any = make(force) or model.train_function
        if getattr(function, "followed_by", None) is not self:
            model.train_function = function = self._followed(model, make, function)
        return function

    def _make_over_replicas(self, model: Model, make: Callable[..., Any], force: bool = False) -> Any:
        """Make it, unless Keras would compile the step of all replicas by XLA as one, which fails when it runs."""
        if uses_xla(model):
            raise errors.UnsupportedError(
                "model.fit: model.compile(jit_compile=True) compiles the step of all replicas into one program, and "
                "XLA compiles for one device; use jit_compile=False, or write the loop: amp.compile(mode='max') "
                "compiles a program for each replica"
            )
        return self._make(model, make, force)

    # -- steps ---------------------------------------------------------------------------------------------------

    def _followed(self, model: Model, make: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
        single_steps = functools.cache(lambda: self._recorder.single_steps(model, make))
        policy = self._spec.policy

        @functools.wraps(function)
        def follow(*args: object) -> Any:
            if self._spec.policy != policy:  # Keras keeps this function while it fits
                return self._make(model, make, force=True)(*args)
            for prepared in self._prepared.optimizers:
                prepared.check_fit("model.fit")
            if self._native_steps.follower is not None:
                self._native_steps.follower.before_step()
            if self._due or self._recorder.armed():
                logs = self._one_by_one(model, single_steps(), *args)
            else:
                logs = self._called(function, *args)
                steps = steps_per_execution(model)
                self._count(model, steps, logs, ahead=steps)
            run = self.run_of(model)
            return logs if run is None else run.with_numbers(logs)

        follow.followed_by = self  # type: ignore[attr-defined]  # read back by _make
        return follow

    def _one_by_one(self, model: Model, step: Callable[..., Any], *args: object) -> Any:
        """Run the steps of one call as one call each, so that some of them can be recorded; return the last's logs."""
        logs, steps = None, steps_per_execution(model)
        for number in range(steps):
            try:
                logs = self._called(step, *args)
            except ENDS_OF_DATA:
                if not number:
                    raise
                break
            self._count(model, 1, logs, ahead=steps)
        return logs

    def _called(self, function: Callable[..., Any], *args: object) -> Any:
        try:
            with self._native_steps.following():
                return function(*args)
        except ENDS_OF_DATA:
            raise
        except BaseException:
            for prepared in self._prepared.optimizers:
                prepared.restart_fit()
            raise

    def _count(self, model: Model, steps: int, logs: Any, ahead: int) -> None:
        """Report steps that have run; of micro-batches, also how many windows ended with them.

        Args:
            model: whose steps.
            steps: how many.
            logs: what Keras returned of them.
            ahead: how many the next call will run.
        """
        window = self._window_of(model)
        ended = steps if window is None else window.count(steps)
        self._due = bool(self._native_steps.after_step(steps, ended, ahead))
        if self._native_steps.follower is not None:
            loss = self._losses.setdefault(id(model), FitLosses()).add(logs, steps)
            for left in reversed(range(ended)):
                self._native_steps.follower.native_step(loss, more=left > 0)

    def _window_of(self, model: Model) -> FitWindow | None:
        optimizer = getattr(model, "optimizer", None)
        return next((each.fit_window for each in self._prepared.optimizers if each.outer is optimizer), None)


def _bound(method: Callable[..., Any], model: Model, name: str) -> Callable[..., Any]:
    """Return what takes the place of a model's method, which it gets to call."""
    native = getattr(model, name)
    return functools.wraps(native)(functools.partial(method, model, native))


def _refuse_workers(*_args: object, **_options: object) -> NoReturn:
    raise errors.UnsupportedError(
        "model.fit: Keras 3 does not run it under a MultiWorkerMirroredStrategy (it fails on the workers' batches, "
        "without unifiedamp too); write the loop with amp.compile and strategy.run, or use Keras 2"
    )
