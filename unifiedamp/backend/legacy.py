"""Backends written before roles: the old interface, and the roles made of it. Goes when no backend needs it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from .. import errors
from ..loss_scale import ScaleState
from ..policy import Policy
from . import recording
from .backend import Backend
from .capabilities import Capabilities, EnvironmentDefaults, MatmulShape, NonFiniteReport, PlanRow
from .optional_roles import (
    ROLE_FEATURES,
    Compiler,
    Converter,
    Distributed,
    LayerShapes,
    Profiler,
    Recorder,
    StepOrderState,
    Tuner,
    Unsupported,
    Weights,
)
from .prefetch import Prefetcher, convert_batch
from .required import required
from .result import StepResult
from .roles import Device, Precision, ScaledLoss, Training
from .spec import SessionSpec

CallState = StepOrderState


class _Extras:
    """The base of ``Backend`` that holds these calls."""

    name: ClassVar[str]

    # -- settings ------------------------------------------------------------------------------------------------

    @classmethod
    def environment_defaults(cls, device: str | None, options: Mapping[str, Any]) -> EnvironmentDefaults:
        """Return what the framework's own environment variables ask for; asked where no policy was given.

        Args:
            device: the device asked for, or None.
            options: ``backend_options`` of this backend.

        Raises:
            ConfigError: a variable cannot be understood; the message names it.
        """
        return EnvironmentDefaults()

    def tuning_rows(self) -> list[PlanRow]:
        """Return a row "tuning.<item>" for each item of ``spec.tuning`` that is declared in ``Capabilities.tuning``,
        and rows on what the prepared models show ("tuning.bias_before_norm").

        Global settings of the framework are to hold while the session computes, and no longer (:class:`Switches`).
        """
        return []

    def debugging_switches(self) -> dict[str, str]:
        """Return the framework's debugging switches that are on now: how each is set → what it costs."""
        return {}

    # -- recording -----------------------------------------------------------------------------------------------

    # Called where the capability ``recording`` is declared.

    def begin_recording(self, activations: bool) -> None:
        """Note the numbers of the steps from here to ``end_recording``; nothing may be left that costs afterwards.

        Args:
            activations: also the largest absolute value of each layer's output, and of each input that came out of no
                layer, in the order in which they run. What runs in inference regions does not count.
        """
        raise errors.UnsupportedError(f"backend {self.name!r} records nothing")

    def note_gradients(self, optimizer: Any) -> Sequence[str]:
        """Count the optimizer's raw gradients on the device, by ``recording.EDGE_BITS``, and note scale and loss.

        Called between ``begin_recording`` and ``end_recording`` when a window is complete, before ``unscale``. In a
        compiled step it runs while tracing; the trace then returns the counts, and another one is run on steps that
        are not recorded.

        Returns:
            The names of the gradients, as ``gradients`` gives them.
        """
        raise errors.UnsupportedError(f"backend {self.name!r} records nothing")

    def end_recording(self) -> recording.RecordedStep:
        """Look no more; return what was noted, read from the device in one go."""
        raise errors.UnsupportedError(f"backend {self.name!r} records nothing")

    def epsilons(self) -> list[recording.Epsilon]:
        """Return the epsilons of the prepared models' layers and of the optimizers."""
        return []

    # -- whole models --------------------------------------------------------------------------------------------

    # The first two are called where the capability ``float32_weights`` is declared.

    def read_weights(self, model: Any) -> dict[str, Any]:
        """Return name → float32 numpy array of everything in a model that has a floating-point dtype (complex64 of what
        is complex), statistics of normalization included: master weights where there are some, else the model's own
        values, cast.
        """
        raise errors.UnsupportedError(f"backend {self.name!r} does not read weights")

    def write_weights(self, model: Any, weights: Mapping[str, Any]) -> None:
        """Set what :meth:`read_weights` returned, masters and the model's own values alike.

        Args:
            model: a model of this framework.
            weights: its names, all of them, → float32 arrays of its shapes.
        """
        raise errors.UnsupportedError(f"backend {self.name!r} does not write weights")

    def convert_model(self, model: Any, inputs: Sequence[Any], policy: Policy) -> Any:
        """Return a copy of a model for inference whose parameters have ``policy.compute_dtype``; see
        ``Amp.convert_model``. Called where the capability ``convert_model`` is declared, with a policy whose
        ``compute_dtype`` is float16 or bfloat16.
        """
        raise errors.UnsupportedError(f"backend {self.name!r} converts no models")

    # -- tools ---------------------------------------------------------------------------------------------------

    def matmul_shapes(self, models: Sequence[Any]) -> list[MatmulShape]:
        """Return the sizes of the models' matrix products and convolutions, in the order of their layers.

        Called where the capability ``shape_advice`` is declared.
        """
        raise errors.UnsupportedError(f"backend {self.name!r} does not know the sizes of a model's matrix products")

    def peak_memory(self) -> int | None:
        """Return the most bytes that the framework has held on the device so far; None where it keeps no count."""
        return None

    def out_of_memory(self, error: BaseException) -> bool:
        """Tell whether an exception says that memory ran out, on the device or beside it."""
        return isinstance(error, MemoryError)

    def kernel_times(self, run: Callable[[], Any]) -> dict[str, float]:
        """Call ``run`` under the framework's profiler; return name → seconds of each kernel that the device ran.

        Called where the capability ``kernel_profile`` is declared.
        """
        raise errors.UnsupportedError(f"backend {self.name!r} has no profile of the device's kernels")


class LegacyBackend(_Extras):
    """One framework, for one session. Subclass it; each method's docstring is its contract.

    Every method may be called while the framework traces a compiled step; a method that cannot be traced says so.

    Args:
        spec: what the session asks for. The constructor refuses what cannot run here
            (``PolicyNotSupportedError`` with the reason and the nearest policy that does) and warns once, through
            ``spec.warn``, of what runs but cannot help.
    """

    name: ClassVar[str]
    #: True when reading the loss scale waits for nothing (eager on CPU): core then looks after every step.
    looking_is_free: bool = True
    #: True when a compiled step runs its Python only while tracing: core then looks after each call of it.
    replays_traces: bool = False
    #: True when one process may run a step's Python for each of several replicas, which :meth:`replica` tells apart.
    runs_replicas: ClassVar[bool] = False
    #: Set by core when the next skipped step should be looked into, for ``non_finite_report``.
    diagnosing: bool = False
    #: Set by core while an observer or a recorder wants to know of each skipped step: where looking would wait, what
    #: ``non_finite_report`` needs of the last skipped step may be kept on the device.
    remembers_skips: bool = False

    def __init__(self, spec: SessionSpec) -> None:
        self.spec = spec

    # -- facts ---------------------------------------------------------------------------------------------------

    @classmethod
    @required
    def default_policy(cls, device: str | None) -> tuple[str, str]:
        """Return the preset that the device does best, and why in a few words."""

    @required
    def capabilities(self) -> Capabilities:
        """Return what this backend can do on the session's device."""

    @required
    def explain(self) -> list[PlanRow]:
        """Return the resolved plan: each setting, the native calls it becomes, and what has no effect here."""

    # -- setting up ----------------------------------------------------------------------------------------------

    @required
    def scope(self) -> AbstractContextManager[None]:
        """Return a context in which native objects are made under the policy; global state is restored on exit."""

    @required
    def prepare(self, models: Sequence[Any], optimizers: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Bind optimizers to parameters, make scaler state, check what would fail later.

        Returns the models and optimizers to use from now on, in order; they are native objects (a backend may return
        the same ones). Each returned optimizer is then passed to the methods below. May be called again to add some.

        Raises:
            WrongObjectError: something that is not a model or optimizer of this framework.
            ParamDtypeError: trainable parameters that the policy cannot train.
            PrepareError: an optimizer whose parameters are not the models', and other things that fail later.
        """

    @required
    def is_model(self, obj: Any) -> bool:
        """Tell whether ``obj`` is a model of this framework (core sorts ``prepare``'s arguments by it)."""

    @required
    def close(self) -> None:
        """Undo what ``prepare`` attached to native objects (hooks, patched methods). Called by ``Amp.close``."""

    # -- one step ------------------------------------------------------------------------------------------------

    @required
    def autocast(self, enabled: bool, policy: Policy | None) -> AbstractContextManager[Any]:
        """Return a region run under the policy (``policy`` replaces the session's); nestable, thread-local."""

    @required
    def inference(self, models: Sequence[Any]) -> AbstractContextManager[Any]:
        """Return a region under the policy that records no gradients, with ``models`` in evaluation mode inside."""

    @required
    def scale_loss(self, loss: Any, optimizers: Sequence[Any]) -> AbstractContextManager[ScaledLoss]:
        """Multiply ``loss`` by the scale in float32 and divide by ``accumulate_steps``.

        Core calls it where the capability ``context_form`` is declared; a framework that lacks it leaves this out and
        overrides :meth:`backward`.

        Raises:
            LossError: the loss is not a scalar, or not connected to any parameter.
        """

    def backward(self, closure: Callable[[], Any], optimizers: Sequence[Any]) -> Any:
        """Run ``closure`` under autocast, scale its loss, differentiate; return the unscaled loss.

        This default is the context form; a purely functional framework overrides it and declares that it lacks
        ``context_form``.
        """
        with self.autocast(True, None):
            loss = closure()
        with self.scale_loss(loss, optimizers) as scaled:
            scaled.backward()
        return loss

    @required
    def unscale(self, optimizer: Any) -> None:
        """Decide finiteness on the raw gradients of the window, then divide them by the scale, in place."""

    @required
    def clip_grad_norm(self, optimizer: Any, max_norm: float) -> Any:
        """Scale unscaled gradients so that their global 2-norm is at most ``max_norm``; return the norm before."""

    @required
    def clip_grad_value(self, optimizer: Any, clip_value: float) -> None:
        """Clamp each element of the unscaled gradients to [-clip_value, clip_value]."""

    @required
    def gradients(self, optimizer: Any) -> dict[str, Any]:
        """Return name → native gradient of the window; no key where there is none.

        Who wants to edit a gradient does it in place; where the framework's arrays cannot be written to, the mapping is
        the window's own, and assigning to a name edits.
        """

    @required
    def step(self, optimizer: Any, update: bool) -> StepResult:
        """Unscale if that has not been done, apply or skip, empty the window's gradients, count.

        Args:
            optimizer: a prepared optimizer.
            update: this step ends the iteration: move the scale by what all its steps found.
        """

    @required
    def update(self) -> None:
        """End the iteration: move the scale by what the steps since the last update found (none: leave it)."""

    @required
    def drop_gradients(self, optimizer: Any) -> None:
        """Empty the window's gradients and forget what ``unscale`` found for it."""

    def rollback(self, optimizers: Sequence[Any]) -> bool:
        """Take these optimizers back to where they were before their windows: an exception left one of their calls.

        Called after any exception or signal out of ``scaled_loss.backward``, ``unscale``, ``clip_grad_norm``,
        ``clip_grad_value``, ``step`` or a compiled step, at whatever point it came; also while tracing. Gradients must
        be gone, those accumulated, unscaled or copied to master weights included, what was found in them forgotten, and
        what the call had set for its time put back. May be called twice.

        Returns:
            Whether the framework's own update had begun, so that some parameters may be updated and others not. Core
            then refuses to go on until the user discards the step or loads a state.
        """
        for optimizer in optimizers:
            self.drop_gradients(optimizer)
        return False

    # -- state ---------------------------------------------------------------------------------------------------

    @required
    def read_state(self) -> ScaleState:
        """Read the scale and counters as plain numbers; may wait for the device."""

    def peek_state(self) -> ScaleState | None:
        """Return the scale and counters as they were at some moment since the last look, without a wait; None where
        none are at hand yet. Core looks this way while all is well; this default reads, which may wait.
        """
        return self.read_state()

    @required
    def write_state(self, state: ScaleState) -> None:
        """Set the scale and counters."""

    def follow(self, after_step: Callable[[], None], look: Callable[[], None], observed: Callable[[], bool]) -> None:
        """Take what core is told by of steps that its own calls do not see; called once, where there is a loss scale.

        A framework whose own training loop takes the prepared optimizer (Keras's ``fit``), or that replays a step
        without running its Python, calls these after such steps. They may raise ``LossScaleExhausted``. This default
        does nothing.

        Args:
            after_step: counts a step, and looks at the scale as seldom as it may.
            look: looks at the scale now.
            observed: tells whether somebody observes the scale.
        """

    def non_finite_report(self) -> NonFiniteReport:
        """Return where the last non-finite step came from, as far as it is known."""
        return NonFiniteReport()

    # -- tools ---------------------------------------------------------------------------------------------------

    @required
    def compile(self, fn: Callable[..., Any], window: CallState, mode: str) -> Callable[..., Any]:
        """Return the compiled form of a whole step (or of a model): same results as eager.

        Args:
            fn: a function that calls the session's methods.
            window: core's record of the order of calls. Python code in ``fn`` runs only while tracing, so a tracing
                framework keys its traces by ``window.snapshot()`` and calls ``window.restore(...)`` with the state
                that the trace ended in, after each call. A framework that runs the Python each time ignores it.
            mode: "default" or "max" of :data:`COMPILE_MODES`; core answers "off" itself.
        """

    def replica(self) -> int:
        """Return the index, within this process, of the replica that calls; 0 outside replicas.

        Core keeps one order of calls for each, where the backend says that it ``runs_replicas``. The backend sees to it
        that all replicas decide alike and that the scale moves once for all.
        """
        return 0

    def tracing(self) -> bool:
        """Tell whether the framework is tracing right now, so that values cannot be read."""
        return False

    @required
    def to_native(self, array: Any, dtype: str | None = None) -> Any:
        """Return an array as a native tensor on the session's device, without a copy where possible.

        Args:
            array: a numpy array, a list, a number, anything with DLPack, or a native tensor.
            dtype: one of :data:`ARRAY_DTYPES`: the tensor has it, whatever ``array`` has. None: floating-point input
                of more than 16 bits comes out in float32, float16 and bfloat16 stay, everything that is not
                floating-point stays, and a native tensor keeps its dtype.

        Raises:
            UnsupportedError: the framework has no tensors of ``dtype`` here.
        """

    def prefetch(self, batches: Iterable[Any], size: int) -> Iterable[Any]:
        """Return the batches as native ones on the session's device, ``size`` of them made ready ahead.

        This default has a thread take them and make them native by :meth:`to_native`.
        """

        def native(value: Any) -> Any:
            # MXNet's arrays, in case they are another framework's, are read by nobody else in one piece.
            return self.to_native(value.asnumpy() if hasattr(value, "asnumpy") else value)

        return Prefetcher(batches, size, functools.partial(convert_batch, to_native=native))

    @required
    def to_numpy(self, tensor: Any) -> Any:
        """Return a native tensor as a numpy array; bfloat16 comes back as float32."""

    @classmethod
    @required
    def custom_function(cls, target: Any, cast_inputs: str | None) -> Any:
        """Return ``target`` (a function or a custom-operation class) for use inside autocast.

        Inside an enabled region floating inputs are cast to ``cast_inputs`` and the body runs without autocast; None
        leaves inputs as they are. A kind of target that the framework has no means for raises ``UnsupportedError``.
        """


def with_roles(legacy: Any) -> Any:
    """Return ``legacy`` (a class) as a class of today's ``Backend``; others unchanged."""
    return _with_roles(legacy) if isinstance(legacy, type) and issubclass(legacy, LegacyBackend) else legacy  # type: ignore[arg-type]


@functools.cache
def _with_roles(legacy: type[LegacyBackend]) -> type[Backend]:
    members = {
        "legacy": legacy, "name": getattr(legacy, "name", "?"), "__module__": legacy.__module__,
        "default_policy": legacy.default_policy, "environment_defaults": legacy.environment_defaults,
        "custom_function": legacy.custom_function,
    }  # fmt: skip
    return type(legacy.__name__, (_Roles,), members)


class _Old:
    def __init__(self, old: Any) -> None:
        self.old = old

    means = "see capabilities"


def _renamed(name: str) -> Any:
    return lambda self, *args, **kwargs: getattr(self.old, name)(*args, **kwargs)


def _role(base: type, **renamed: str) -> Any:
    """Return a role class that passes each abstract and default method on to the old backend."""
    own = [n for n in vars(base) if not n.startswith("_") and callable(getattr(base, n))]
    return type(f"Legacy{base.__name__}", (_Old, base), {n: _renamed(renamed.get(n, n)) for n in own})


_PrecisionRole = _role(Precision)
_TunerRole = _role(Tuner, rows="tuning_rows", debug_modes="debugging_switches")
_RecorderRole = _role(Recorder, begin="begin_recording", end="end_recording")
_WeightsRole = _role(Weights, read="read_weights", write="write_weights")
_ConverterRole = _role(Converter, convert="convert_model")
_LayerShapesRole = _role(LayerShapes)
_ProfilerRole = _role(Profiler)


class _DeviceRole(_role(Device)):  # type: ignore[misc]
    @property
    def reads_without_sync(self) -> bool:
        return bool(self.old.looking_is_free)

    @property
    def name(self) -> str:
        return str(self.old.capabilities().device)


class _TrainingRole(
    _role(  # type: ignore[misc]
        Training, update_scale="update", zero_grad="drop_gradients", poll_state="peek_state", on_native_steps="follow",
        nonfinite_report="non_finite_report",
    )
):  # fmt: skip
    def collect_nonfinite_report(self, enabled: bool) -> None:
        self.old.diagnosing = enabled

    def keep_skip_report(self, enabled: bool) -> None:
        self.old.remembers_skips = enabled


class _CompilerRole(_role(Compiler)):  # type: ignore[misc]
    @property
    def replays_traces(self) -> bool:
        return bool(self.old.replays_traces)


class _DistributedRole(_role(Distributed)):  # type: ignore[misc]
    @property
    def runs_replicas(self) -> bool:
        return bool(self.old.runs_replicas)


class _Roles(Backend):
    legacy: Any

    def __init__(self, spec: SessionSpec) -> None:
        super().__init__(spec)
        self.old = old = self.legacy(spec)
        self.device, self.precision, self.training = _DeviceRole(old), _PrecisionRole(old), _TrainingRole(old)
        made = {
            "compiler": _CompilerRole, "recorder": _RecorderRole, "weights": _WeightsRole, "converter": _ConverterRole,
            "layer_shapes": _LayerShapesRole, "profiler": _ProfilerRole, "distributed": _DistributedRole,
        }  # fmt: skip
        features = old.capabilities()
        for attribute, feature in ROLE_FEATURES.items():
            support = features.feature(feature)
            role = made[attribute](old) if support else Unsupported(support.reason)
            if support:
                role.means = support.reason  # type: ignore[union-attr]  # temporary
            setattr(self, attribute, role)
        self.tuner = _TunerRole(old)
        self.interop = old

    def declare(self) -> Capabilities:
        return self.old.capabilities()  # type: ignore[no-any-return]

    def explain(self) -> list[PlanRow]:
        return self.old.explain()  # type: ignore[no-any-return]

    def close(self) -> None:
        self.old.close()

    def __getattr__(self, name: str) -> Any:
        if name in ("old", "legacy") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.old, name)
