"""``Amp``: the session that a training loop holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, overload

from .backend import Capabilities, StepResult, Tuning
from .checkpoint import model_weights
from .checkpoint.session_state import dump_session, load_session
from .config import values
from .config.resolve import region_policy
from .explain.plan import Plan
from .explain.tuning import warn_debug_modes, warn_unsupported
from .forecast.run import ForecastRun
from .loss_scale import LossScale
from .names import ArrayDtype, BackendName, CompileMode, Dtype, LossScaleName, NumpyArray, TuningName
from .policy import AnyPolicy, Policy, PolicySchedule
from .recording.recorder import Recorder
from .recording.start import start_recording
from .session_start import start_session
from .training.closed_session import close_session
from .training.compiled_steps import CompiledSteps, F
from .training.ema import Averages, Ema
from .training.interruption import GuardedLoss
from .training.prepare import A, B, Ts, prepare_objects
from .training.session_view import refuse_pickle, same_session, session_html, session_text
from .training.step_loop import StepLoop, T


class Amp:
    """A mixed-precision session: a policy, a loss scaler and the calls of a training step.

    Args:
        backend: a backend's name. None reads ``UNIFIEDAMP_BACKEND``, else takes the only installed framework.
        policy: a ``Policy``, its name, its text or a mapping of its fields. None reads ``UNIFIEDAMP_POLICY``, else
            takes the policy that the backend recommends for the device.
        schedule: policies over the course of the run, in place of ``policy``: a ``PolicySchedule``, its text or a
            mapping ``{0: "mixed_float8", "90%": "mixed_bfloat16"}`` of iterations or percentages to policies.
        total_steps: the iterations of the whole run, for percentages in ``schedule``.
        loss_scale: a ``LossScale``, a number (static), ``"dynamic"``, ``"none"`` or a mapping; replaces the policy's.
            None reads ``UNIFIEDAMP_LOSS_SCALE``, else takes the policy's.
        accumulate_steps: micro-batches per optimizer step. ``step`` is called after each; a scaled loss is divided by
            this number, so the gradient is the mean over the window.
        device: "cpu", "cuda", "cuda:1", "gpu(0)", in the framework's spelling. None takes its best device.
        strict: turn every warning of a downgrade or of a setting without effect into an error.
        compile: the default mode of ``amp.compile``: "default", "max" or "off".
        tuning: speed settings besides the policy: a ``Tuning``, ``"fast"`` or a mapping of its items. None: none.
        backend_options: settings of single frameworks, by backend: ``{"tensorflow": {"xla": True}}``.
        master_weights: optimizers train float32 copies of 16-bit parameters (policies ``float16`` and ``bfloat16``);
            ``float16`` then gets a dynamic loss scale unless you pass another one.
        reduce_dtype: the dtype in which ranks or replicas sum gradients: "float32", "bfloat16" or "float16", which
            needs a loss scale. None leaves it to the framework.

    Attributes:
        backend, schedule: the framework's backend, and the policies over the course of the run (None for one policy).
        loss_scale_settings, tuning, compile_mode: the settings in force.
        models, averages: those prepared so far, and what :meth:`ema` made.
        step_loop, scale_monitor: the calls of a step, and what polls the loss scale, for loops other than yours.

    Raises:
        BackendNotFoundError, BackendUnavailableError: the backend is unknown, or its framework is not installed.
        PolicyError, PolicyNotSupportedError, UnsupportedError, ConfigError: an argument is wrong, or cannot run here.
    """

    def __init__(
        self,
        backend: BackendName | str | None = None,
        policy: AnyPolicy | Mapping[str, Any] = None,
        *,
        loss_scale: LossScale | LossScaleName | str | float | Mapping[str, Any] | None = None,
        accumulate_steps: int = 1,
        device: str | None = None,
        strict: bool = False,
        compile: CompileMode = "default",
        tuning: Tuning | TuningName | Mapping[str, Any] | None = None,
        backend_options: Mapping[str, Any] | None = None,
        master_weights: bool = False,
        reduce_dtype: Dtype | str | None = None,
        schedule: PolicySchedule | Mapping[Any, Any] | str | None = None,
        total_steps: int | None = None,
    ) -> None:
        self.tuning = Tuning.of(tuning)
        start = start_session(
            backend, policy, loss_scale, accumulate_steps, device, strict, compile, self.tuning, backend_options,
            master_weights, reduce_dtype, schedule, total_steps,
        )  # fmt: skip
        self.backend, self.compile_mode, resolved = start.backend, start.compile_mode, start.resolved
        self._policy, self.loss_scale_settings, self._origins = resolved.policy, resolved.loss_scale, resolved.origins
        self.schedule = resolved.schedule
        self._loop = StepLoop(self.backend, accumulate_steps, self.loss_scale_settings)
        self._loop.measure = None if start.run is None else start.run.follow(self, self._loop)
        self._compiled = CompiledSteps(self.backend, self._loop)
        self.averages = Averages(self.backend, self._loop.interruptions)
        self.step_loop, self.scale_monitor = self._loop, self._loop.monitor
        self.models: list[Any] = []
        warn_unsupported(self.backend, self.tuning)

    @classmethod
    def from_config(cls, source: str | Path | Mapping[str, Any], **arguments: Any) -> Amp:
        """Create a session from a TOML or JSON file or a mapping: the arguments of ``Amp``, also in a table ``[amp]``.

        The environment variables ``UNIFIEDAMP_BACKEND``, ``UNIFIEDAMP_POLICY`` and ``UNIFIEDAMP_LOSS_SCALE`` override
        it, and ``arguments`` (None counts as not given) override both. Raises ``ConfigError``.
        """
        from .config.arguments import read_arguments

        read = read_arguments(source, arguments)
        amp = cls(**read)
        amp._origins = {**amp._origins, **read.origins}
        return amp

    @property
    def policy(self) -> Policy:
        """The policy in force; under a schedule, that of the next forward pass."""
        return self._policy if self._loop.policies is None else self._loop.policies.policy

    @property
    def capabilities(self) -> Capabilities:
        """What the backend can do on this device, each answer with a reason."""
        return self.backend.capabilities()

    def scope(self) -> AbstractContextManager[None]:
        """Return a context in which models and optimizers are created under the policy; restores global state."""
        return self.backend.precision.scope()

    @overload
    def prepare(self, model: A, /) -> A: ...
    @overload
    def prepare(self, model: A, other: B, /, *others: *Ts) -> tuple[A, B, *Ts]: ...
    def prepare(self, *objects: *Ts) -> Any:
        """Bind optimizers to models and check what would fail later.

        Takes native models and optimizers (Gluon: Trainers), at least one model. Returns the objects to use from now
        on, in this order. Raises ``PrepareError``, ``ParamDtypeError`` or ``WrongObjectError``.
        """
        prepared = prepare_objects(self.backend, self._loop, objects, self.models)
        warn_debug_modes(self.backend, self.tuning)
        return prepared if len(prepared) > 1 else prepared[0]

    @overload
    def compile(self, fn: F, *, mode: CompileMode | None = None) -> F: ...
    @overload
    def compile(self, fn: None = None, *, mode: CompileMode | None = None) -> Callable[[F], F]: ...
    def compile(self, fn: F | None = None, *, mode: CompileMode | None = None) -> F | Callable[[F], F]:
        """Return a whole step compiled, with the same results as eager; a decorator, with or without arguments.

        ``fn`` calls the session's methods, or is a model. ``mode`` is "default", "max" (the fastest, however long it
        compiles), "off" (returns ``fn``) or None: the session's. Raises ``ConfigError``, ``UnsupportedError`` or
        ``WrongObjectError``.
        """
        return self._compiled.decorate(fn, self.compile_mode if mode is None else mode, self.tuning)

    def autocast(self, enabled: bool = True, policy: AnyPolicy = None) -> AbstractContextManager[Any]:
        """Return a region that runs under the policy; nestable, thread-local. ``enabled=False`` runs it without
        autocast; ``policy`` replaces the session's."""
        chosen = region_policy(self.backend, enabled, policy)
        self._loop.enter_region()
        return self.backend.precision.autocast(enabled, chosen)

    def mp_policy(self) -> Any:
        """Return the policy for torch's FSDP2: ``fully_shard(module, mp_policy=amp.mp_policy())``. It gathers in
        ``compute_dtype`` and reduces in ``reduce_dtype`` (default: float32). Elsewhere raises ``UnsupportedError``."""
        return self.backend.distributed.mp_policy()

    def inference(self, *models: Any) -> AbstractContextManager[Any]:
        """Return a region under the policy without gradients, with ``models`` (default: all) in evaluation mode."""
        return self.backend.precision.inference(model_weights.check_models(self.backend, models) or tuple(self.models))

    def scale_loss(self, loss: T, optimizers: Any) -> AbstractContextManager[GuardedLoss[T]]:
        """Return a context that yields the scaled loss: ``.backward()``, and ``.value`` in float32.

        ``loss`` is a scalar computed inside ``autocast``; ``optimizers`` is the optimizer that it trains, or a list.
        Raises ``StepOrderError`` outside a region, ``LossError`` for a loss that is no scalar, and ``UnsupportedError``
        where the framework differentiates functions only (see ``backward``).
        """
        return self._loop.scale_loss(loss, optimizers)

    def backward(self, closure: Callable[[], T], optimizers: Any) -> T:
        """Run ``closure`` under autocast, scale its loss, differentiate; return the unscaled loss. Any exception, also
        one of the closure, discards the window."""
        return self._loop.backward(closure, optimizers)

    def unscale(self, optimizer: Any) -> None:
        """Divide the gradients by the scale, once; a no-op inside an accumulation window and when already done."""
        self._loop.unscale(optimizer)

    def clip_grad_norm(self, optimizer: Any, max_norm: float) -> Any:
        """Clip the global 2-norm of the true gradients; return the norm before, a native scalar (inside an accumulation
        window None: nothing is done). Like :meth:`clip_grad_value`, raises ``ConfigError`` for a limit that is not
        positive, and ``StepOrderError`` before any scaled loss."""
        return self._loop.clip("clip_grad_norm", "max_norm", optimizer, max_norm)

    def clip_grad_value(self, optimizer: Any, clip_value: float) -> None:
        """Clamp the true gradients to [-clip_value, clip_value]; a no-op inside an accumulation window."""
        self._loop.clip("clip_grad_value", "clip_value", optimizer, clip_value)

    def gradients(self, optimizer: Any) -> dict[str, Any]:
        """Return name → native gradient, scaled before ``unscale`` and true after it; empty between windows."""
        return self._loop.gradients(optimizer)

    def step(self, optimizer: Any, scheduler: Any = None) -> StepResult:
        """Check the gradients for inf and nan, apply or skip the step, update the scale, zero the gradients.

        ``scheduler.step()`` is called only after an applied step; finding out may synchronize with the device. Raises
        ``StepOrderError`` (no loss was scaled in this iteration, or a scheduler inside a compiled step),
        ``LossScaleExhausted`` (too many skips in a row), and ``WrongObjectError`` for no or another one's scheduler.
        """
        return self._loop.step(optimizer, scheduler)

    def discard_step(self, optimizer: Any) -> StepResult:
        """Drop the window's gradients, also after an exception; the scale stays. Idempotent. All ranks call it, or one
        of them in place of the ``step`` of a window in which all called :meth:`skip_if`."""
        return self._loop.discard(optimizer)

    def skip_if(self, condition: Any) -> None:
        """Drop the open windows if ``condition``, a bool or a scalar tensor, holds on any rank; never waits.

        All ranks call it between the backward pass and :meth:`step`, which then applies nothing, returns the reason
        "discarded" and leaves the scale, unless gradients overflow. Raises ``StepOrderError`` or ``WrongObjectError``.
        """
        self._loop.skip_if(condition)

    @property
    def loss_scale(self) -> float:
        """The scale that the next loss is multiplied by; 1.0 without a scaler."""
        return self.backend.training.read_state().scale

    @property
    def applied_steps(self) -> int:
        """Optimizer steps applied so far, over all optimizers."""
        return self.backend.training.read_state().applied_steps

    @property
    def skipped_steps(self) -> int:
        """Optimizer steps skipped for non-finite gradients so far, over all optimizers."""
        return self.backend.training.read_state().skipped_steps

    def state_dict(self, *, moments: bool = False) -> dict[str, Any]:
        """Return plain JSON values: scale, counters, settings, policy, place in the schedule, averages; at any time.
        ``moments`` adds the optimizers' moments, for another framework (policies with update or state_dtype)."""
        return dump_session(self, moments)

    def load_state_dict(self, state: Mapping[str, Any], *, restart_scale: bool = False) -> None:
        """Load what :meth:`state_dict` returned, or a scaler's state of torch, Apex, Keras, MXNet, DeepSpeed, Megatron.

        Pending gradients are dropped: the next loss begins a new iteration. A scale is rounded to float32; one outside
        the session's bounds is clamped, with a ``StateWarning``. ``restart_scale`` accepts a state saved with loss
        scaling off, and starts from the initial scale. Raises ``CheckpointError``, and changes nothing, for a foreign,
        truncated or newer state or one without scaling.
        """
        load_session(self, self._loop.restart, state, restart_scale)

    def master_weights(self, model: Any) -> dict[str, NumpyArray]:
        """Return name → float32 (or complex64) numpy array of a model's true weights, for lossless checkpoints: master
        weights where there are some, else the model's values; with statistics of normalization layers. Raises
        ``WrongObjectError`` or ``UnsupportedError``."""
        return model_weights.master_weights(self.backend, model)

    def load_master_weights(self, model: Any, weights: Mapping[str, Any]) -> None:
        """Set a model's weights, master weights included, to those that :meth:`master_weights` returned. A wrong name
        or shape, or a missing one, raises ``CheckpointError`` and changes nothing."""
        self.averages.check_idle("load_master_weights")
        model_weights.load_master_weights(self.backend, model, weights)

    def ema(self, model: Any, decay: float = 0.999, *, warmup: bool = False) -> Ema:
        """Keep an ``Ema``, a float32 average of a model's (master) weights; evaluate it in ``with ema.swapped():``.

        ``model`` is a prepared one or a part of it; ``decay`` is at least 0 and below 1; ``warmup`` lets early steps
        count for more. It is saved and loaded with :meth:`state_dict`. Raises ``ConfigError``, ``UnsupportedError``,
        and ``WrongObjectError`` or ``PrepareError`` for what is no model, or one that is not trained.
        """
        return self.averages.create(model, decay, warmup)

    def convert_model(self, model: Any, *example_inputs: Any, policy: AnyPolicy = None) -> Any:
        """Return a copy of a trained model for low-precision inference; the model itself does not change.

        The copy needs no session: it takes the same inputs, computes in the policy's ``compute_dtype`` and returns
        ``output_dtype``. Layers of ``layer_overrides``, and norms under ``keep_norm_float32``, keep their dtype. It may
        be run once on ``example_inputs``, native arrays; ``policy`` replaces the session's. Raises ``PolicyError``,
        ``PolicyNotSupportedError`` (float32, float8), ``WrongObjectError`` (inputs) and ``UnsupportedError`` (models).
        """
        return model_weights.convert_model(self.backend, model, example_inputs, policy, self.policy)

    def explain(self) -> Plan:
        """Return the resolved plan before training: print it, or iterate over its rows."""
        step = 0 if self._loop.policies is None else self._loop.policies.step
        return Plan.of(self.backend, self.policy, self.loss_scale_settings, self.tuning, self._origins, step)

    def observe(self, observer: object) -> None:
        """Register an object with hooks of ``unifiedamp.training.observers.ObserverHooks``; else ``ConfigError``."""
        self.scale_monitor.add(observer)

    def record(
        self, *targets: Any, every: int | None = 100, activations: bool = True, compare: bool = False,
        states: bool = False,
    ) -> Recorder:  # fmt: skip
        """Record statistics of each layer, on the first step, on every ``every``-th and after a skipped step.

        Only these steps compute or synchronize. Leaving the returned context, ``stop()`` and ``amp.close()`` end it.
        ``targets`` are paths (JSON lines, appended), objects with ``write(record)`` or functions of a record. All
        ranks call this; the first writes. ``every`` is at least 1; None writes what ``recorder.log`` gets.
        ``activations``: layers' outputs too (compiled loops may run uncompiled); ``compare``: for ``unifiedamp diff``;
        ``states``: also weights and optimizer states. Raises ``UnsupportedError``, ``StepOrderError``, ``ConfigError``.
        """
        return start_recording(self.backend, self._loop, targets, every, activations, compare, states)

    def forecast(
        self, steps: int = 50, *, max_error: float = 0.1, formats: Sequence[str] = ("bfloat16", "float16", "float8")
    ) -> ForecastRun:
        """Count the values of each matrix product in the next steps, and forecast what other formats would lose.

        The steps train as they would, uncompiled, under a policy of float32 or bfloat16 (else ``PolicyError``). The
        returned context counts until ``done``; its ``result()`` is a ``Forecast``: a table of layers and formats, and
        for each of ``formats`` the policy that keeps each tensor's mean squared relative error within ``max_error``.
        Raises ``UnsupportedError``, ``StepOrderError`` and ``ConfigError``, as :meth:`record` does.
        """
        from .forecast.start import start_forecast

        return start_forecast(self.backend, self._loop, steps, max_error, formats)

    def to_native(self, array: Any, dtype: ArrayDtype | None = None) -> Any:
        """Return a batch (numpy array, list, number, array of another framework or native tensor) on the device.

        ``dtype`` is "float32", "float16", "bfloat16" or "float64" (else ``UnsupportedError``). None: wider
        floating-point input is returned in float32; all else, and any native tensor, keeps its dtype.
        """
        return self.backend.device.to_native(array, values.check_array_dtype(dtype))

    def to_numpy(self, tensor: Any) -> NumpyArray:
        """Return a native tensor as a numpy array; bfloat16 is returned as float32."""
        return self.backend.device.to_numpy(tensor)

    def prefetch(self, batches: Iterable[Any], size: int = 2) -> Iterable[Any]:
        """Return ``batches`` as native ones on the session's device, ``size`` (at least 1) prepared ahead of the loop.

        A thread reads ``batches``; a ``tf.data`` dataset prefetches itself. Arrays in nested lists, tuples and dicts
        are converted as by :meth:`to_native`. Each loop starts ``batches`` anew.
        """
        values.check_prefetch(batches, size)
        return self.backend.device.prefetch(batches, size)

    def close(self) -> None:
        """Undo what the session attached to native objects; end a recording. Idempotent. Later calls, but ``to_numpy``,
        ``explain``, state and counts, raise ``StepOrderError``."""
        close_session(self, self._compiled, self._loop.listener)

    __repr__, _repr_html_, __reduce_ex__, __deepcopy__ = session_text, session_html, refuse_pickle, same_session
