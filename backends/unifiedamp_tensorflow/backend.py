"""The TensorFlow backend: Keras dtype policies, a gradient tape per iteration, a loss scale in variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from unifiedamp.backend import (
    Backend,
    CallState,
    Capabilities,
    MatmulShape,
    NonFiniteReport,
    PlanRow,
    Policy,
    ScaleState,
    SessionSpec,
    StepResult,
    errors,
    result,
)

from . import facts, modes, ops, prepare, shapes, usage
from .autocast import Inference, Region
from .checks import check_spec, not_in_trace, refuse_replicas, scalar_loss
from .compile import CompiledStep
from .gradients import Bound
from .scaler import DeviceScaler
from .tapes import Tapes


class TensorFlowBackend(Backend):
    """One session on TensorFlow and Keras."""

    name: ClassVar[str] = "tensorflow"
    replays_traces: ClassVar[bool] = True

    def __init__(self, spec: SessionSpec) -> None:
        super().__init__(spec)
        check_spec(spec)
        self.device = facts.device_of(spec.device)
        self.mode = modes.make_mode(spec, self.device)
        facts.warn_without_gain(spec, self.device)
        self.tapes = Tapes()
        self.scaler = DeviceScaler(spec.loss_scale) if spec.loss_scale.enabled else None
        self.looking_is_free = self.device.is_cpu
        self._bounds: list[Bound] = []
        self._by_id: dict[int, Bound] = {}
        self._applied_before = 0
        self._skipped: Bound | None = None
        self._report: NonFiniteReport | None = None

    # -- facts ---------------------------------------------------------------------------------------------------

    @classmethod
    def default_policy(cls, device: str | None) -> tuple[str, str]:
        """See ``Backend.default_policy``."""
        return facts.default_policy(facts.device_of(device))

    def capabilities(self) -> Capabilities:
        """See ``Backend.capabilities``."""
        return facts.capabilities(self.device, self.mode.op_overrides())

    def explain(self) -> list[PlanRow]:
        """See ``Backend.explain``; under ``mode="graph_rewrite"`` a small graph is converted to see what happens."""
        return [*self.mode.explain(), *facts.explain(self.spec, self.device)]

    # -- setting up ----------------------------------------------------------------------------------------------

    def scope(self) -> AbstractContextManager[None]:
        """See ``Backend.scope``."""
        return self.mode.scope()

    def is_model(self, obj: Any) -> bool:
        """See ``Backend.is_model``."""
        return isinstance(obj, tf.keras.layers.Layer)

    def prepare(self, models: Sequence[Any], optimizers: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """See ``Backend.prepare``."""
        prepare.check_objects(models, optimizers, self.spec)
        self.mode.check_models(models)
        plan = prepare.plan_optimizers(models, optimizers, self._bounds)
        self.mode.attach(models)
        outers = []
        for optimizer, named in plan:
            bound = prepare.bind(optimizer, named, self.spec, self.scaler)
            self._bounds.append(bound)
            self._by_id[id(bound.outer)] = bound
            outers.append(bound.outer)
        return list(models), outers

    def close(self) -> None:
        """See ``Backend.close``."""
        self.mode.detach()

    # -- one step ------------------------------------------------------------------------------------------------

    def autocast(self, enabled: bool, policy: Policy | None) -> AbstractContextManager[Any]:
        """See ``Backend.autocast``."""
        return Region(self.tapes, *self.mode.region(enabled, policy))

    def inference(self, models: Sequence[Any]) -> AbstractContextManager[Any]:
        """See ``Backend.inference``; Keras passes the mode with each call, so all prepared models evaluate inside."""
        return Inference(self.tapes, *self.mode.region(True, None))

    def scale_loss(self, loss: Any, optimizers: Sequence[Any]) -> AbstractContextManager[Any]:
        """See ``Backend.scale_loss``."""
        return _Scaled(self, scalar_loss(loss), [self._by_id[id(optimizer)] for optimizer in optimizers])

    def seed(self) -> Any:
        """Return what a loss is multiplied by, or None for 1."""
        steps = self.spec.accumulate_steps
        if self.scaler is None:
            return None if steps == 1 else tf.constant(1.0 / steps, tf.float32)
        return self.scaler.scale.read_value() if steps == 1 else self.scaler.scale / float(steps)

    def differentiate(self, loss: Any, bounds: Sequence[Bound]) -> None:
        """Add the gradients of the scaled loss to the windows.

        Raises:
            LossError: the loss was not computed under a tape of this session, or depends on no parameter.
        """
        if tf.executing_eagerly():
            self.mode.on_eager_backward()
        variables = [variable for bound in bounds for variable in bound.variables]
        seed = self.seed()
        seed = seed if seed is None else tf.cast(seed, loss.dtype)
        gradients = self.tapes.gradient(loss, variables, seed)
        unconnected = gradients is None or all(gradient is None for gradient in gradients)
        if unconnected and not self.tapes.knows(loss):
            raise errors.LossError(
                "amp.scale_loss: the loss depends on no trainable variable used inside 'with amp.autocast():'; compute "
                "model outputs and loss inside the region, by TensorFlow operations, and scale it before the next step"
            )
        left = iter(gradients or ())
        for bound in bounds:
            bound.add([next(left) for _ in bound.variables], loss)

    def unscale(self, optimizer: Any) -> None:
        """See ``Backend.unscale``."""
        self._by_id[id(optimizer)].unscale("unscale")

    def clip_grad_norm(self, optimizer: Any, max_norm: float) -> Any:
        """See ``Backend.clip_grad_norm``."""
        gradients = self._by_id[id(optimizer)].gradients
        if not gradients:
            return tf.constant(0.0)
        norm = tf.linalg.global_norm(list(gradients.values()))
        clipped, _ = tf.clip_by_global_norm(list(gradients.values()), max_norm, use_norm=norm)
        gradients.update(zip(gradients, clipped, strict=True))
        return norm

    def clip_grad_value(self, optimizer: Any, clip_value: float) -> None:
        """See ``Backend.clip_grad_value``."""
        gradients = self._by_id[id(optimizer)].gradients
        for name, gradient in gradients.items():
            gradients[name] = tf.clip_by_value(gradient, -clip_value, clip_value)

    def gradients(self, optimizer: Any) -> dict[str, Any]:
        """See ``Backend.gradients``; TensorFlow's tensors cannot be written to, so set the entries of this dict."""
        return self._by_id[id(optimizer)].collect("gradients")

    def step(self, optimizer: Any, update: bool) -> StepResult:
        """See ``Backend.step``."""
        refuse_replicas("amp.step")
        bound = self._by_id[id(optimizer)]
        bound.unscale("step")
        if not bound.collect("step"):
            outcome = self._no_gradients(bound, update)
        elif self.scaler is None:
            bound.apply()
            outcome = self._outcome(True, 1.0, 1.0)
        elif tf.executing_eagerly():
            outcome = self._step_now(bound, update)
        else:
            outcome = self._step_traced(bound, update)
        bound.clear()
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

    def _step_now(self, bound: Bound, update: bool) -> StepResult:
        assert self.scaler is not None
        flags = bound.flags.numpy()
        finite = bool(flags.all())
        if finite:
            bound.apply()
        else:
            names = tuple(name for name, good in zip(bound.gradients, flags, strict=True) if not good)
            self._report = NonFiniteReport(names, bool(tf.math.is_finite(bound.loss)))
        return self._outcome(finite, *self.scaler.step_now(finite, update=update))

    def _step_traced(self, bound: Bound, update: bool) -> StepResult:
        assert self.scaler is not None
        scaler = self.scaler

        def skip() -> None:
            bound.note_bad()
            if bound.loss is not None:
                scaler.loss_finite.assign(tf.math.is_finite(bound.loss))

        alone = update and len(self._bounds) == 1
        scaler.step(tf.reduce_all(bound.flags), bound.apply, skip, alone=alone)
        if update and not alone:
            scaler.update()
        return not_in_trace()

    @staticmethod
    def _outcome(applied: bool, scale: float, after: float) -> StepResult:
        if not tf.executing_eagerly():
            return not_in_trace()
        return StepResult.of(applied, not applied, result.APPLIED if applied else result.NON_FINITE, scale, after)

    def update(self) -> None:
        """See ``Backend.update``."""
        if self.scaler is not None and len(self._bounds) > 1:
            self.scaler.update()

    def drop_gradients(self, optimizer: Any) -> None:
        """See ``Backend.drop_gradients``."""
        self._by_id[id(optimizer)].clear()

    # -- state ---------------------------------------------------------------------------------------------------

    def read_state(self) -> ScaleState:
        """See ``Backend.read_state``."""
        if self.scaler is not None:
            return self.scaler.read()
        steps = sum(int(bound.inner.iterations.numpy()) - bound.steps_before for bound in self._bounds)
        return ScaleState(applied_steps=self._applied_before + steps)

    def write_state(self, state: ScaleState) -> None:
        """See ``Backend.write_state``."""
        if self.scaler is not None:
            self.scaler.write(state)
            return
        for bound in self._bounds:
            bound.steps_before = int(bound.inner.iterations.numpy())
        self._applied_before = state.applied_steps

    def non_finite_report(self) -> NonFiniteReport:
        """See ``Backend.non_finite_report``."""
        if self._report is not None or self.scaler is None:
            return self._report or NonFiniteReport()
        names = tuple(name for bound in self._bounds for name in bound.report(None).tensors)
        return NonFiniteReport(names, bool(self.scaler.loss_finite.numpy()))

    # -- tools ---------------------------------------------------------------------------------------------------

    def matmul_shapes(self, models: Sequence[Any]) -> list[MatmulShape]:
        """See ``Backend.matmul_shapes``."""
        return list(shapes.matmul_shapes(models))

    def peak_memory(self) -> int | None:
        """See ``Backend.peak_memory``."""
        return usage.peak_memory(self.device)

    def out_of_memory(self, error: BaseException) -> bool:
        """See ``Backend.out_of_memory``."""
        return usage.out_of_memory(error)

    def kernel_times(self, run: Callable[[], Any]) -> dict[str, float]:
        """See ``Backend.kernel_times``."""
        return usage.kernel_times(run)

    def compile(self, fn: Callable[..., Any], window: CallState, mode: str) -> Callable[..., Any]:
        """See ``Backend.compile``: ``tf.function``, by XLA with mode "max" or ``backend_options.tensorflow.xla``."""
        self.looking_is_free = False
        xla = bool(self.spec.options.get("xla", mode == "max"))
        return CompiledStep(fn, window, self._bounds, self.tapes, xla, self.mode.around_call())

    def tracing(self) -> bool:
        """See ``Backend.tracing``."""
        return not tf.executing_eagerly()

    def to_native(self, array: Any) -> Any:
        """See ``Backend.to_native``."""
        with tf.device(self.device.tf_name):
            return ops.to_native(array)

    def to_numpy(self, tensor: Any) -> Any:
        """See ``Backend.to_numpy``."""
        # numpy cannot take a bfloat16 scalar of TensorFlow's as it is.
        return np.asarray(tf.cast(tensor, tf.float32) if getattr(tensor, "dtype", None) == "bfloat16" else tensor)

    @classmethod
    def custom_function(cls, target: Any, cast_inputs: str | None) -> Any:
        """See ``Backend.custom_function``."""
        return ops.custom_function(target, cast_inputs)


class _Scaled:
    """``with amp.scale_loss(...) as scaled_loss``."""

    __slots__ = ("_backend", "_bounds", "_loss")

    def __init__(self, backend: TensorFlowBackend, loss: Any, bounds: Sequence[Bound]) -> None:
        self._backend, self._loss, self._bounds = backend, loss, bounds

    def __enter__(self) -> _Scaled:
        return self

    def __exit__(self, *exception: Any) -> None:
        pass

    @property
    def value(self) -> Any:
        """The scaled loss, float32."""
        seed = self._backend.seed()
        loss = tf.cast(self._loss, tf.float32)
        return loss if seed is None else loss * seed

    def backward(self) -> None:
        """Add the gradients of the scaled loss to the window of each optimizer named."""
        self._backend.differentiate(self._loss, self._bounds)
