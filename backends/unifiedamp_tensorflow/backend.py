"""The TensorFlow backend: Keras dtype policies, a gradient tape per iteration, a loss scale in variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from unifiedamp.backend import (
    Capabilities,
    NonFiniteReport,
    PlanRow,
    Policy,
    ScaleState,
    SessionSpec,
    StepResult,
    errors,
    result,
)

from . import capabilities as facts
from .device import arrays
from .distributed.replicas import Alone, check_scope, replicas_of
from .optional import TensorFlowExtras
from .precision import operations, recomputation
from .precision import scope as modes
from .precision.autocast import Inference, Region
from .precision.session_rewrite import SessionRewrite
from .training import deferred_optimizer, prepare
from .training.checks import check_spec, not_in_trace, scalar_loss
from .training.fit import Fitting
from .training.optimizers import released
from .training.prepared_optimizer import Bound
from .training.scaled_loss import Handle
from .training.scaler import UNKNOWN, DeviceScaler
from .training.steps import Steps


class TensorFlowBackend(TensorFlowExtras):
    """One session on TensorFlow and Keras."""

    name: ClassVar[str] = "tensorflow"
    replays_traces: ClassVar[bool] = True
    runs_replicas: ClassVar[bool] = True

    def __init__(self, spec: SessionSpec) -> None:
        check_spec(spec)
        super().__init__(spec)
        self.mode = modes.make_mode(spec, self.device)
        facts.warn_without_gain(spec, self.device)
        self.scaler = DeviceScaler(spec.loss_scale, self.device.is_cpu, self.told) if spec.loss_scale.enabled else None
        self.looking_is_free = self.device.is_cpu
        self._steps = Steps(self.scaler, self.told)
        self._fitting = Fitting(self.told, self.bounds)
        self._applied_before = 0
        self._undo: list[Callable[[], None]] = []

    # -- facts ---------------------------------------------------------------------------------------------------

    @classmethod
    def default_policy(cls, device: str | None) -> tuple[str, str]:
        """See ``Backend.default_policy``."""
        return facts.default_policy(facts.device_of(device))

    def capabilities(self) -> Capabilities:
        """See ``Backend.capabilities``."""
        return facts.capabilities(self.device, self.mode.op_overrides(), self.spec.options.get("emulate", False))

    def explain(self) -> list[PlanRow]:
        """See ``Backend.explain``; under ``mode="graph_rewrite"`` a small graph is converted to see what happens."""
        return [*self.mode.explain(), *facts.explain(self.spec, self.device)]

    # -- setting up ----------------------------------------------------------------------------------------------

    def scope(self) -> AbstractContextManager[None]:
        """See ``Backend.scope``.

        Raises:
            UnsupportedError: the active ``tf.distribute`` strategy is none of those supported.
        """
        check_scope()
        return self.tuned.scope(self.mode.scope())

    def is_model(self, obj: Any) -> bool:
        """See ``Backend.is_model``."""
        return isinstance(obj, tf.keras.layers.Layer)

    def prepare(self, models: Sequence[Any], optimizers: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """See ``Backend.prepare``."""
        optimizers = [released(optimizer) for optimizer in optimizers]
        prepare.check_objects(models, optimizers, self.spec)
        self.mode.check_models(models)
        again = [recomputation.choose(model, self.spec.tuning.checkpoint_layers) for model in models]
        plan = prepare.plan_optimizers(models, optimizers, self.bounds)
        replicas = replicas_of([v for _, named in plan for v in named.values()], optimizers)
        if self.spec.master_weights and replicas.count > 1:
            raise errors.UnsupportedError(
                "master_weights=True: an optimizer's float32 copies are made on one device, and the model is spread "
                f"over {replicas.count} replicas; use policy 'mixed_{self.spec.policy.compute_dtype}' there"
            )
        self._place(replicas)
        self.mode.attach(models)
        for model, chosen in zip(models, again, strict=True):
            self._undo += [recomputation.attach(layer) for layer in chosen.values()]
            self.tuned.note(model, list(chosen))
        for optimizer, named in plan:
            with self.replicas.scope():
                bound = prepare.bind(
                    optimizer, named, self.spec, self.scaler, self.replicas, self._steps, self.trainability
                )
            bound.number = len(self.bounds)
            self.bounds.append(bound)
            self._by_id[id(bound.outer)] = bound
        self.trainability.follow(models)
        new = [model for model in models if not any(model is known for known in self._models)]
        self._undo += [self._fitting.attach(model, replicas) for model in new]
        self._models += new
        return list(models), [bound.outer for bound in self.bounds[len(self.bounds) - len(plan) :]]

    def _place(self, replicas: Alone) -> None:
        """Train where the model is."""
        if self.bounds and replicas != self.replicas:
            raise errors.PrepareError(
                "amp.prepare: this model and those prepared before are not under one tf.distribute strategy; make "
                "another Amp for it"
            )
        if replicas != self.replicas and self.scaler is not None:
            self.scaler.move(replicas.scope())
        self.replicas = replicas

    def close(self) -> None:
        """See ``Backend.close``."""
        while self._undo:
            self._undo.pop()()
        for bound in self.bounds:
            if bound.outer is not bound.inner:
                bound.outer._amp_closed = True
        self.told.stop()
        self.mode.detach()

    def wrap_optimizer(self, optimizer: Any, after_step: Callable[[], None]) -> Any:
        """Return a Keras optimizer under the session's loss scale, bound when it is built; for loops of Keras 2's form.

        Args:
            optimizer: a Keras optimizer.
            after_step: called after each eager step.

        Raises:
            WrongObjectError, PrepareError: see ``prepare``.
        """
        assert self.scaler is not None
        prepare.check_optimizer(optimizer)
        self._place(deferred_optimizer.replicas_here())
        return deferred_optimizer.late_class()(
            optimizer, deferred_optimizer.Loop(self.scaler, self.replicas, self._steps, after_step)
        )

    def session_rewrite(self) -> SessionRewrite:
        """Return the session's policy and loss scale for ``tf.compat.v1.Session`` training; see ``v1.py``."""
        return SessionRewrite(self.spec.policy, self.spec.loss_scale)

    # -- one step ------------------------------------------------------------------------------------------------

    def autocast(self, enabled: bool, policy: Policy | None) -> AbstractContextManager[Any]:
        """See ``Backend.autocast``."""
        return Region(self.tapes, self.tuned.switches, *self.mode.region(enabled, policy))

    def inference(self, models: Sequence[Any]) -> AbstractContextManager[Any]:
        """See ``Backend.inference``; Keras passes the mode with each call, so all prepared models evaluate inside."""
        return Inference(self.tapes, self.tuned.switches, *self.mode.region(True, None))

    def scale_loss(self, loss: Any, optimizers: Sequence[Any]) -> AbstractContextManager[Any]:
        """See ``Backend.scale_loss``."""
        return Handle(self, scalar_loss(loss), [self._by_id[id(optimizer)] for optimizer in optimizers])

    def unscale(self, optimizer: Any) -> None:
        """See ``Backend.unscale``; gradients are summed over replicas first."""
        self._window(optimizer, "unscale").unscale("unscale")

    def clip_grad_norm(self, optimizer: Any, max_norm: float) -> Any:
        """See ``Backend.clip_grad_norm``."""
        return self._window(optimizer, "clip_grad_norm").clip_norm(max_norm)

    def clip_grad_value(self, optimizer: Any, clip_value: float) -> None:
        """See ``Backend.clip_grad_value``."""
        self._window(optimizer, "clip_grad_value").clip_value(clip_value)

    def gradients(self, optimizer: Any) -> dict[str, Any]:
        """See ``Backend.gradients``; TensorFlow's tensors cannot be written to, so set the entries of this dict."""
        return self._window(optimizer, "gradients").collect("gradients")

    def step(self, optimizer: Any, update: bool) -> StepResult:
        """See ``Backend.step``."""
        window, bound = self._window(optimizer, "step"), self._by_id[id(optimizer)]
        if window.collect("step"):
            outcome = self._steps.end(bound, update=update, alone=len(self.bounds) == 1)
        else:
            outcome = self._no_gradients(bound, update)
        window.clear()
        if update:
            self.tapes.drop()
        return outcome

    def _no_gradients(self, bound: Bound, update: bool) -> StepResult:
        self.spec.warn(
            f"amp.step: none of the {len(bound.names)} parameters of this {type(bound.inner).__name__} received a "
            f"gradient (first: {errors.first_names(bound.names)}); nothing was applied and the scale stays",
            errors.StepWarning,
        )
        if update:
            self.update()
        if not tf.executing_eagerly():
            return not_in_trace()
        scale = self.read_state().scale
        return StepResult.of(False, False, result.NO_GRADIENTS, scale, scale)

    def update(self) -> None:
        """See ``Backend.update``."""
        if self.scaler is not None and len(self.bounds) > 1:
            self.replicas.once(self.scaler.update)

    def drop_gradients(self, optimizer: Any) -> None:
        """See ``Backend.drop_gradients``."""
        self._window(optimizer, "discard_step").clear()
        self._by_id[id(optimizer)].forgive()

    def rollback(self, optimizers: Sequence[Any]) -> bool:
        """See ``Backend.rollback``."""
        bounds = [self._by_id[id(optimizer)] for optimizer in optimizers]
        for bound in bounds:
            bound.clear()
        broken = [bound.broken() for bound in bounds]
        return any(broken)

    # -- state ---------------------------------------------------------------------------------------------------

    def read_state(self) -> ScaleState:
        """See ``Backend.read_state``."""
        if self.scaler is not None:
            return self.scaler.read()
        steps = sum(int(bound.inner.iterations.numpy()) - bound.steps_before for bound in self.bounds)
        return ScaleState(applied_steps=self._applied_before + steps)

    def write_state(self, state: ScaleState) -> None:
        """See ``Backend.write_state``."""
        for bound in self.bounds:
            bound.forgive()
        if self.scaler is not None:
            self.scaler.write(state)
            return
        for bound in self.bounds:
            bound.steps_before = int(bound.inner.iterations.numpy())
        self._applied_before = state.applied_steps

    def non_finite_report(self) -> NonFiniteReport:
        """See ``Backend.non_finite_report``."""
        if self.scaler is None:
            return NonFiniteReport()
        last = int(self.scaler.skipped_by.numpy())
        names = tuple(self.bounds[last].bad_names() if self.bounds else ())
        finite = int(self.scaler.loss_finite.numpy())
        return NonFiniteReport(names, None if finite == UNKNOWN else bool(finite))

    def follow(self, after_step: Callable[[], None], look: Callable[[], None], observed: Callable[[], bool]) -> None:
        """See ``Backend.follow``."""
        self.told.start(after_step, look, observed)

    # -- tools ---------------------------------------------------------------------------------------------------

    def replica(self) -> int:
        """See ``Backend.replica``."""
        return self.replicas.here()

    def to_native(self, array: Any, dtype: str | None = None) -> Any:
        """See ``Backend.to_native``."""
        with tf.device(self.device.tf_name):
            return arrays.to_native(array, dtype)

    def to_numpy(self, tensor: Any) -> Any:
        """See ``Backend.to_numpy``."""
        # numpy cannot take a bfloat16 scalar of TensorFlow's as it is.
        return np.asarray(tf.cast(tensor, tf.float32) if getattr(tensor, "dtype", None) == "bfloat16" else tensor)

    @classmethod
    def custom_function(cls, target: Any, cast_inputs: str | None) -> Any:
        """See ``Backend.custom_function``."""
        return operations.custom_function(target, cast_inputs)
