"""``Amp``: the session that a training loop holds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar, overload

from .backend.capabilities import ARRAY_DTYPES, COMPILE_MODES
from .backend.spec import SessionSpec
from .backend.tuning import Tuning, compile_mode, tell_of_debugging, tell_of_lacking
from .checkpoint import model_weights
from .checkpoint.session_state import dump_session, read_session
from .config import plugins
from .config.resolve import resolve
from .errors import ConfigError, PolicyWarning, UnsupportedError, WrongObjectError, nearest
from .explain.plan import Plan
from .loss_scale import LossScale
from .policy import Policy
from .recording.recorder import Recorder
from .recording.start import start_recording
from .training.closed_session import refuse_calls
from .training.step_calls import StepCalls

F = TypeVar("F", bound=Callable[..., Any])


class Amp(StepCalls):
    """One mixed-precision session: a policy, a loss scaler and the calls of a training step.

    Args:
        backend: a backend's name. None reads ``UNIFIEDAMP_BACKEND``, else takes the one installed framework.
        policy: a ``Policy``, its name or its text. None reads ``UNIFIEDAMP_POLICY``, else takes the best the device
            does well.
        loss_scale: a ``LossScale``, a number (static), ``"dynamic"``, ``"none"`` or a mapping; replaces the policy's.
            None reads ``UNIFIEDAMP_LOSS_SCALE``, else takes the policy's.
        accumulate_steps: micro-batches per optimizer step. ``step`` is called after each; a scaled loss is divided by
            this number, so the gradient is the mean over the window.
        device: "cpu", "cuda", "cuda:1", "gpu(0)": the framework's own spelling. None takes its best.
        strict: turn every downgrade or no-effect warning into an error.
        compile: what ``amp.compile`` does unless it is told otherwise: "default", "max" or "off".
        tuning: speed settings besides the policy: a ``Tuning``, ``"fast"`` or a mapping of its items. None changes
            nothing.
        backend_options: settings of one framework alone, by backend: ``{"tensorflow": {"xla": True}}``.
        master_weights: under a policy whose parameters have 16 bits (``float16``, ``bfloat16``), optimizers train
            float32 copies of them; ``float16`` then gets a dynamic loss scale unless another one is asked for.

    Raises:
        BackendNotFoundError, BackendUnavailableError: the backend is unknown, or its framework is not there.
        PolicyError, PolicyNotSupportedError: the policy makes no sense, or cannot run here.
        ConfigError: another argument is wrong; several frameworks are installed and none was named.
    """

    def __init__(
        self,
        backend: str | None = None,
        policy: str | Policy | None = None,
        *,
        loss_scale: object = None,
        accumulate_steps: int = 1,
        device: str | None = None,
        strict: bool = False,
        compile: str = "default",
        tuning: Tuning | str | Mapping[str, Any] | None = None,
        backend_options: Mapping[str, Any] | None = None,
        master_weights: bool = False,
    ) -> None:
        if not isinstance(accumulate_steps, int) or isinstance(accumulate_steps, bool) or accumulate_steps < 1:
            raise ConfigError(f"accumulate_steps must be a whole number of at least 1, got {accumulate_steps!r}")
        self.tuning = Tuning.of(tuning)
        self.compile_mode = compile_mode(_compile_mode(compile, "compile"), self.tuning)
        resolved = resolve(backend, policy, loss_scale, device, backend_options, master_weights)
        self.policy: Policy = resolved.policy
        self.loss_scale_settings: LossScale = resolved.loss_scale
        self._origins = resolved.origins
        spec = SessionSpec(
            resolved.policy,
            resolved.loss_scale,
            accumulate_steps,
            device,
            bool(strict),
            resolved.options,
            self.compile_mode,
            master_weights,
            self.tuning,
        )
        for message in resolved.warnings:
            spec.warn(message, PolicyWarning)
        super().__init__(resolved.backend_class(spec), accumulate_steps, resolved.loss_scale)
        if master_weights:
            self._require("master_weights", "master_weights=True")
        tell_of_lacking(self.backend, self.tuning)

    @classmethod
    def from_config(cls, source: str | Path | Mapping[str, Any], **arguments: Any) -> Amp:
        """Make a session from a TOML or JSON file or a mapping.

        Keys are the arguments of ``Amp``, at the top or in a table ``[amp]``. The environment variables
        ``UNIFIEDAMP_BACKEND``, ``UNIFIEDAMP_POLICY`` and ``UNIFIEDAMP_LOSS_SCALE`` go before what it says.

        Args:
            source: the file, or the mapping.
            **arguments: arguments of ``Amp`` that go before both; None counts as not given.

        Raises:
            ConfigError: unreadable, an unknown key (with the nearest right one) or a value of the wrong type.
        """
        from .config.arguments import Arguments, read_arguments

        read = source if isinstance(source, Arguments) and not arguments else read_arguments(source, arguments)
        amp = cls(**read)
        amp._origins = {**amp._origins, **read.origins}
        return amp

    # -- setting up ----------------------------------------------------------------------------------------------

    def scope(self) -> AbstractContextManager[None]:
        """Return a context in which models and optimizers are made under the policy; global state is put back."""
        return self.backend.precision.scope()

    def prepare(self, *objects: Any) -> Any:
        """Bind optimizers to models and check what would fail later.

        Args:
            *objects: models and optimizers (Gluon: Trainers), native ones, in any order; one model at least.

        Returns:
            The objects to use from now on, in the order given; a single object when one was given.

        Raises:
            WrongObjectError, PrepareError, ParamDtypeError: see ``Backend.prepare``.
        """
        if not objects:
            raise WrongObjectError("amp.prepare() needs a model, and the optimizers that train it")
        is_model = [self._training.is_model(obj) for obj in objects]
        models = [obj for obj, yes in zip(objects, is_model, strict=True) if yes]
        optimizers = [obj for obj, yes in zip(objects, is_model, strict=True) if not yes]
        limit = self.capabilities.feature("several_optimizers")
        if len(self._window.slots) + len(optimizers) > 1 and not limit:
            raise UnsupportedError(f"backend {self.backend.name!r} takes one optimizer: {limit.reason}")
        models, optimizers = map(list, self._training.prepare(models, optimizers))
        for optimizer in optimizers:
            self._window.bind(optimizer)
        self._models += models
        tell_of_debugging(self.backend, self.tuning)
        left = {True: iter(models), False: iter(optimizers)}
        prepared = tuple(next(left[yes]) for yes in is_model)
        return prepared if len(prepared) > 1 else prepared[0]

    # -- compiling -----------------------------------------------------------------------------------------------

    @overload
    def compile(self, fn: F, *, mode: str | None = None) -> F: ...

    @overload
    def compile(self, fn: None = None, *, mode: str | None = None) -> Callable[[F], F]: ...

    def compile(self, fn: F | None = None, *, mode: str | None = None) -> F | Callable[[F], F]:
        """Return a compiled form of a whole step, with the results of eager; a decorator, with or without arguments.

        Args:
            fn: a function that calls the session's methods, or a model.
            mode: "default", "max" (the fastest that the framework has, however long compiling takes) or "off" (``fn``
                as it is). None takes the session's ``compile``.

        Raises:
            ConfigError: an unknown mode.
            UnsupportedError: the backend cannot compile.
        """
        chosen = self.compile_mode if mode is None else _compile_mode(mode, "amp.compile: mode")
        if fn is None:
            return functools.partial(self.compile, mode=chosen)
        return fn if chosen == "off" else self._compiled(fn, chosen)

    def _compiled(self, fn: F, mode: str) -> F:
        support = self.capabilities.feature("compile")
        if not support:
            raise UnsupportedError(f"backend {self.backend.name!r} cannot compile: {support.reason}")
        tell_of_debugging(self.backend, self.tuning)
        compiled = self.backend.compiler.compile(fn, self._window, mode)
        replays = self.backend.compiler.replays_traces and not self._training.is_model(compiled)
        return self._watched(compiled) if replays else compiled  # type: ignore[return-value]

    # -- state ---------------------------------------------------------------------------------------------------

    @property
    def loss_scale(self) -> float:
        """The scale that the next loss will be multiplied by; 1.0 without a scaler."""
        return self._training.read_state().scale

    @property
    def applied_steps(self) -> int:
        """Optimizer steps applied so far, over all optimizers."""
        return self._training.read_state().applied_steps

    @property
    def skipped_steps(self) -> int:
        """Optimizer steps skipped for non-finite gradients so far, over all optimizers."""
        return self._training.read_state().skipped_steps

    def state_dict(self) -> dict[str, Any]:
        """Return plain JSON values: the scale, its counters and settings, and the policy. Legal at any time."""
        return dump_session(self)

    def load_state_dict(self, state: Mapping[str, Any], *, restart_scale: bool = False) -> None:
        """Take over a state saved here, under another backend, or by a framework's own scaler.

        What is pending (gradients of an open window, findings of optimizers that had their step) is dropped: the next
        loss begins a new iteration. A saved scale is rounded to the nearest float32; one outside the session's bounds
        is clamped, with a ``StateWarning``.

        Args:
            state: what ``state_dict`` returned, or the layout of torch's ``GradScaler``, Apex, Keras's
                ``LossScaleOptimizer`` or MXNet's ``LossScaler``.
            restart_scale: accept a state saved with loss scaling off, and start from the initial scale.

        Raises:
            CheckpointError: foreign, truncated, from a newer version, or saved with scaling off. Nothing is changed.
        """
        accepted = read_session(self, state, restart_scale)
        self._interruptions.forgive()
        self._start_anew()
        self._training.write_state(accepted)
        self._watch.expect(self._training.read_state())
        if self._recorder is not None:
            self._recorder.state_loaded(len(self._window.slots))

    # -- tools ---------------------------------------------------------------------------------------------------

    def explain(self) -> Plan:
        """Return the resolved plan before training: print it, or iterate over its rows."""
        return Plan.of(self.backend, self.policy, self.loss_scale_settings, self.tuning, self._origins)

    def observe(self, observer: object) -> None:
        """Plug in an object with any of the hooks of ``unifiedamp.config.plugins.ObserverHooks``.

        Raises:
            ConfigError: it has none of them, or one that is misspelt.
        """
        self._watch.hooks = plugins.add_observer(self._watch.hooks, observer)
        self._watch.expect(self._training.read_state())

    def record(self, *targets: Any, every: int = 100, activations: bool = True) -> Recorder:
        """Record each layer's numbers, on the first step and on every ``every``-th.

        On these steps alone something is computed and the device is waited for. A step that follows a skipped one
        is recorded too.

        Args:
            *targets: paths (files of JSON lines, appended to), objects with ``write(record)``
                (``unifiedamp.recording.TensorBoard(folder)``) or functions of a record.
            every: steps from one recorded step to the next, at least 1.
            activations: look at layers' outputs too; recorded steps of compiled loops may run uncompiled for it.

        Returns:
            The recorder, a context: recording ends when it is left, by its ``stop()``, or by ``amp.close()``.

        Raises:
            UnsupportedError: the backend cannot.
            StepOrderError: nothing is prepared yet, or the session records already.
            ConfigError: an argument is wrong, or a file cannot be written to.
        """
        self._recorder = start_recording(self, self._recorder, targets, every, activations)
        return self._recorder

    def to_native(self, array: Any, dtype: str | None = None) -> Any:
        """Return a batch as a native tensor on the session's device.

        Args:
            array: a numpy array, a list, a number, another framework's array (DLPack), or a native tensor.
            dtype: the dtype it comes out in: "float32", "float16", "bfloat16" or "float64". None: floating-point input
                comes out in float32, except that float16 and bfloat16 stay; integers, booleans and complex numbers
                stay; a native tensor keeps its dtype.

        Raises:
            ConfigError: an unknown ``dtype``.
            UnsupportedError: the framework has no arrays of that dtype here.
        """
        return self.backend.device.to_native(array, _array_dtype(dtype))

    def to_numpy(self, tensor: Any) -> Any:
        """Return a native tensor as a numpy array; bfloat16 comes back as float32."""
        return self.backend.device.to_numpy(tensor)

    def prefetch(self, batches: Iterable[Any], size: int = 2) -> Iterable[Any]:
        """Return ``batches`` as native ones on the session's device, made ready ahead of the loop.

        A thread takes from ``batches`` while the loop computes. On a GPU, copies are made from pinned memory beside the
        computation where the framework can; what TensorFlow has of its own for ``tf.data`` is used for its datasets.
        Arrays (numpy, DLPack, any framework's) in nested lists, tuples and dicts become native tensors, in the dtypes
        that :meth:`to_native` gives them; everything else stays as it is. Each loop over the result takes ``batches``
        from its start, if it has one.

        Args:
            batches: an iterable of batches, a framework's own data loader among others.
            size: batches made ready ahead of the one in use, at least 1.

        Raises:
            ConfigError: ``size`` is no such number.
            WrongObjectError: ``batches`` cannot be iterated over. What ``batches`` raises comes out in its place,
                after the batches before it.
        """
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ConfigError(f"amp.prefetch: size must be a whole number of at least 1, got {size!r}")
        if not isinstance(batches, Iterable):
            raise WrongObjectError(f"amp.prefetch takes an iterable of batches, got {type(batches).__name__}")
        return self.backend.device.prefetch(batches, size)

    def close(self) -> None:
        """Take back what the session attached to models, optimizers and the framework; end a recording. Idempotent.

        Afterwards ``state_dict``, ``loss_scale``, ``applied_steps``, ``skipped_steps``, ``explain`` and ``to_numpy``
        answer as before; every other call, compiled steps included, raises ``StepOrderError``.
        """
        if self._closed:
            return
        if self._recorder is not None:
            self._recorder.stop()
        self._closed = True
        refuse_calls(self)
        self.backend.close()

    # -- whole models --------------------------------------------------------------------------------------------

    def master_weights(self, model: Any) -> dict[str, Any]:
        """Return a model's true weights, for a checkpoint that loses no bits: name → float32 numpy array; complex64 for
        complex ones.

        The names are the framework's. Where there are float32 master weights these are returned, else the model's own
        values, cast; statistics of normalization layers are among them.

        Raises:
            WrongObjectError: ``model`` is no model of this framework.
            UnsupportedError: the backend cannot.
        """
        return model_weights.master_weights(self, model)

    def load_master_weights(self, model: Any, weights: Mapping[str, Any]) -> None:
        """Set a model's weights to those that :meth:`master_weights` returned: masters and the model's own alike.

        Raises:
            CheckpointError: a name or a shape does not fit, or something is missing. Nothing is changed.
            WrongObjectError, UnsupportedError: as for ``master_weights``.
        """
        model_weights.load_master_weights(self, model, weights)

    def convert_model(self, model: Any, *example_inputs: Any, policy: str | Policy | None = None) -> Any:
        """Return a copy of a trained model for inference in low precision; the model stays as it is.

        The copy needs no session: it takes the same inputs, computes in the policy's ``compute_dtype`` outside any
        region and returns ``output_dtype``. Its parameters have the compute dtype, except those of layers that
        ``layer_overrides`` names, and of normalization layers under ``keep_norm_float32``.

        Args:
            model: a model of this framework, prepared or not.
            *example_inputs: native arrays like those it is called with. Where the framework does not need them
                to make the copy, the copy is run on them once.
            policy: a ``Policy``, its name or its text; None takes the session's.

        Raises:
            PolicyError, PolicyNotSupportedError: the policy computes in float32 or float8, or cannot run here.
            WrongObjectError: ``model`` is no model of this framework, or example inputs are wrong or missing.
            UnsupportedError: the backend cannot, or cannot with this model; the message says why.
        """
        return model_weights.convert_model(self, model, example_inputs, policy)

    # -- inside --------------------------------------------------------------------------------------------------

    def _start_anew(self) -> None:
        """Drop gradients and findings of the window that is open, and what an interrupted call left."""
        self._interruptions.forgive()
        pending = self._window.pending()
        for optimizer in pending:
            self._training.zero_grad(optimizer)
        if pending:
            self._training.update_scale()
        self._window.reset()

    def _require(self, feature: str, call: str) -> None:
        support = self.capabilities.feature(feature)
        if not support:
            raise UnsupportedError(f"{call}: backend {self.backend.name!r} cannot: {support.reason}")


def _compile_mode(mode: object, what: str) -> str:
    if not isinstance(mode, str) or mode not in COMPILE_MODES:
        raise ConfigError(
            f"{what} must be one of {', '.join(COMPILE_MODES)}, got {mode!r}{nearest(str(mode), COMPILE_MODES)}"
        )
    return mode


def _array_dtype(dtype: object) -> str | None:
    if dtype is None or (isinstance(dtype, str) and dtype in ARRAY_DTYPES):
        return dtype
    raise ConfigError(f"amp.to_native: dtype must be one of {', '.join(ARRAY_DTYPES)} or None, got {dtype!r}")
