"""The TensorFlow backend: Keras dtype policies, a gradient tape per iteration, a loss scale in variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from unifiedamp.backend import (
    Backend,
    CallState,
    Capabilities,
    EnvironmentDefaults,
    MatmulShape,
    NonFiniteReport,
    PlanRow,
    Policy,
    ScaleState,
    SessionSpec,
    StepResult,
    errors,
    recording,
    result,
)

from . import (
    checkpointing,
    convert,
    epsilons,
    facts,
    late,
    modes,
    ops,
    prefetch,
    prepare,
    shapes,
    switches,
    tuning,
    usage,
    weights,
)
from .autocast import Inference, Region
from .bound import Bound
from .checks import check_spec, not_in_trace, scalar_loss
from .compile import CompiledStep
from .gradients import Gradients
from .recorder import Notes
from .replicas import Alone, replicas_of
from .scaler import DeviceScaler
from .steps import Steps
from .tapes import Tapes
from .v1 import SessionRewrite


class TensorFlowBackend(Backend):
    """One session on TensorFlow and Keras."""

    name: ClassVar[str] = "tensorflow"
    replays_traces: ClassVar[bool] = True
    runs_replicas: ClassVar[bool] = True

    def __init__(self, spec: SessionSpec) -> None:
        super().__init__(spec)
        check_spec(spec)
        self.device = facts.device_of(spec.device)
        self.mode = modes.make_mode(spec, self.device)
        facts.warn_without_gain(spec, self.device)
        self.tuned = tuning.Tuned(spec, self.device)
        self.tapes = Tapes()
        self.scaler = DeviceScaler(spec.loss_scale, self.device.is_cpu) if spec.loss_scale.enabled else None
        self.looking_is_free = self.device.is_cpu
        self.replicas = Alone()
        self._steps = Steps(self.scaler)
        self.bounds: list[Bound] = []
        self._by_id: dict[int, Bound] = {}
        self._applied_before = 0
        self._compiling = 0
        self._models: list[Any] = []
        self._undo: list[Callable[[], None]] = []
        self.notes: Notes | None = None

    # -- facts ---------------------------------------------------------------------------------------------------

    @classmethod
    def default_policy(cls, device: str | None) -> tuple[str, str]:
        """See ``Backend.default_policy``."""
        return facts.default_policy(facts.device_of(device))

    @classmethod
    def environment_defaults(cls, device: str | None, options: Mapping[str, Any]) -> EnvironmentDefaults:
        """See ``Backend.environment_defaults``: TensorFlow's switches of its graph rewrite."""
        return switches.environment_defaults(facts.device_of(device), options)

    def capabilities(self) -> Capabilities:
        """See ``Backend.capabilities``."""
        return facts.capabilities(self.device, self.mode.op_overrides(), self.spec.options.get("emulate", False))

    def explain(self) -> list[PlanRow]:
        """See ``Backend.explain``; under ``mode="graph_rewrite"`` a small graph is converted to see what happens."""
        return [*self.mode.explain(), *facts.explain(self.spec, self.device)]

    def tuning_rows(self) -> list[PlanRow]:
        """See ``Backend.tuning_rows``."""
        return self.tuned.rows()

    def debugging_switches(self) -> dict[str, str]:
        """See ``Backend.debugging_switches``."""
        return tuning.debugging_switches()

    # -- setting up ----------------------------------------------------------------------------------------------

    def scope(self) -> AbstractContextManager[None]:
        """See ``Backend.scope``."""
        return self.tuned.scope(self.mode.scope())

    def is_model(self, obj: Any) -> bool:
        """See ``Backend.is_model``."""
        return isinstance(obj, tf.keras.layers.Layer)

    def prepare(self, models: Sequence[Any], optimizers: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """See ``Backend.prepare``."""
        prepare.check_objects(models, optimizers, self.spec)
        self.mode.check_models(models)
        again = [checkpointing.choose(model, self.spec.tuning.checkpoint_layers) for model in models]
        plan = prepare.plan_optimizers(models, optimizers, self.bounds)
        self._place(replicas_of([v for _, named in plan for v in named.values()], optimizers))
        self.mode.attach(models)
        for model, chosen in zip(models, again, strict=True):
            self._undo += [checkpointing.attach(layer) for layer in chosen.values()]
            self.tuned.note(model, list(chosen))
        for optimizer, named in plan:
            with self.replicas.scope():
                bound = prepare.bind(optimizer, named, self.spec, self.scaler, self.replicas, self._steps)
            self.bounds.append(bound)
            self._by_id[id(bound.outer)] = bound
        self._models += [model for model in models if not any(model is known for known in self._models)]
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
        self._place(late.replicas_here())
        return late.late_class()(optimizer, late.Loop(self.scaler, self.replicas, self._steps, after_step))

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
        self.replicas.check("amp.scale_loss")
        if tf.executing_eagerly():
            self.mode.on_eager_backward()
        elif self.spec.accumulate_steps > 1 and not self._compiling:
            raise errors.StepOrderError(
                f"amp.scale_loss: accumulate_steps={self.spec.accumulate_steps} inside a tf.function of your own, "
                "whose Python runs once: each call would be the first micro-batch again; use amp.compile in its place"
            )
        variables = [variable for bound in bounds for variable in bound.variables]
        seed = self.seed()
        seed = seed if seed is None else tf.cast(seed, loss.dtype)
        with self.tuned.switches:
            gradients = self.tapes.gradient(loss, variables, seed)
        unconnected = gradients is None or all(gradient is None for gradient in gradients)
        if unconnected and not self.tapes.knows(loss):
            raise errors.LossError(
                "amp.scale_loss: the loss depends on no trainable variable used inside 'with amp.autocast():'; compute "
                "model outputs and loss inside the region, by TensorFlow operations, and scale it before the next step"
            )
        left = iter(gradients or ())
        for bound in bounds:
            bound.window().add([next(left) for _ in bound.variables], loss)

    def unscale(self, optimizer: Any) -> None:
        """See ``Backend.unscale``; gradients are summed over replicas first."""
        self._window(optimizer, "unscale").unscale("unscale")

    def clip_grad_norm(self, optimizer: Any, max_norm: float) -> Any:
        """See ``Backend.clip_grad_norm``."""
        gradients = self._window(optimizer, "clip_grad_norm").present
        if not gradients:
            return tf.constant(0.0)
        norm = tf.linalg.global_norm(list(gradients.values()))
        clipped, _ = tf.clip_by_global_norm(list(gradients.values()), max_norm, use_norm=norm)
        gradients.update(zip(gradients, clipped, strict=True))
        return norm

    def clip_grad_value(self, optimizer: Any, clip_value: float) -> None:
        """See ``Backend.clip_grad_value``."""
        gradients = self._window(optimizer, "clip_grad_value").present
        for name, gradient in gradients.items():
            gradients[name] = tf.clip_by_value(gradient, -clip_value, clip_value)

    def gradients(self, optimizer: Any) -> dict[str, Any]:
        """See ``Backend.gradients``; TensorFlow's tensors cannot be written to, so set the entries of this dict."""
        return self._window(optimizer, "gradients").collect("gradients")

    def _window(self, optimizer: Any, call: str) -> Gradients:
        """Return the window of the replica that calls."""
        self.replicas.check(f"amp.{call}")
        return self._by_id[id(optimizer)].window()

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

    # -- state ---------------------------------------------------------------------------------------------------

    def read_state(self) -> ScaleState:
        """See ``Backend.read_state``."""
        if self.scaler is not None:
            return self.scaler.read()
        steps = sum(int(bound.inner.iterations.numpy()) - bound.steps_before for bound in self.bounds)
        return ScaleState(applied_steps=self._applied_before + steps)

    def write_state(self, state: ScaleState) -> None:
        """See ``Backend.write_state``."""
        if self.scaler is not None:
            self.scaler.write(state)
            return
        for bound in self.bounds:
            bound.steps_before = int(bound.inner.iterations.numpy())
        self._applied_before = state.applied_steps

    def non_finite_report(self) -> NonFiniteReport:
        """See ``Backend.non_finite_report``."""
        if self._steps.last_report is not None or self.scaler is None:
            return self._steps.last_report or NonFiniteReport()
        names = tuple(name for bound in self.bounds for name in bound.bad_names())
        return NonFiniteReport(names, bool(self.scaler.loss_finite.numpy()))

    # -- recording -----------------------------------------------------------------------------------------------

    def begin_recording(self, activations: bool) -> None:
        """See ``Backend.begin_recording``.

        Raises:
            UnsupportedError: the model is spread over several replicas.
        """
        if self.replicas.count > 1:
            raise errors.UnsupportedError(
                f"amp.record: the model is spread over {self.replicas.count} replicas of a tf.distribute strategy, and "
                "what each notes cannot leave it; record a run on one device"
            )
        self.notes = Notes(self._models, activations)

    def note_gradients(self, optimizer: Any) -> Sequence[str]:
        """See ``Backend.note_gradients``."""
        assert self.notes is not None
        window = self._window(optimizer, "record")
        scale = None if self.scaler is None else self.scaler.scale.read_value()
        self.notes.gradients(window.collect("record"), scale, window.loss)
        return list(window.present)

    def end_recording(self) -> recording.RecordedStep:
        """See ``Backend.end_recording``."""
        notes, self.notes = self.notes, None
        if notes is None:
            return recording.RecordedStep()
        notes.stop()
        return notes.read()

    def epsilons(self) -> list[recording.Epsilon]:
        """See ``Backend.epsilons``."""
        return list(epsilons.epsilons(self._models, [bound.inner for bound in self.bounds]))

    # -- whole models --------------------------------------------------------------------------------------------

    def read_weights(self, model: Any) -> dict[str, Any]:
        """See ``Backend.read_weights``; under mixed policies the variables are float32, and so true."""
        return weights.read(model)

    def write_weights(self, model: Any, values: Mapping[str, Any]) -> None:
        """See ``Backend.write_weights``."""
        weights.write(model, values)

    def convert_model(self, model: Any, inputs: Sequence[Any], policy: Policy) -> Any:
        """See ``Backend.convert_model``: a clone."""
        return convert.convert_model(model, inputs, policy, self.spec, self.device)

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
        """See ``Backend.compile``: ``tf.function``, by XLA with mode "max" or ``backend_options.tensorflow.xla``.

        Raises:
            UnsupportedError: at the first call, where XLA cannot compile the step (several replicas, graph rewrite).
        """
        self.looking_is_free = False
        return CompiledStep(fn, window, self, tuning.by_xla(self.spec, mode))

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Trace a compiled step inside; what was recorded is dropped."""
        self._compiling += 1
        try:
            yield
        finally:
            self._compiling -= 1
            self.tapes.drop()

    def replica(self) -> int:
        """See ``Backend.replica``."""
        return self.replicas.here()

    def tracing(self) -> bool:
        """See ``Backend.tracing``."""
        return not tf.executing_eagerly()

    def to_native(self, array: Any) -> Any:
        """See ``Backend.to_native``."""
        with tf.device(self.device.tf_name):
            return ops.to_native(array)

    def prefetch(self, batches: Iterable[Any], size: int) -> Iterable[Any]:
        """See ``Backend.prefetch``: what ``tf.data`` has of its own for its datasets."""
        return prefetch.ahead(batches, size, self.device)

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
