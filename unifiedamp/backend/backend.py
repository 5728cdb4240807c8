"""``Backend``: one framework, for one session."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol, TypeVar

from .. import errors
from ..loss_scale import ScaleState
from ..policy import Policy
from . import recording as recording
from .capabilities import (
    Capabilities,
    NonFiniteReport,
    PlanRow,
)
from .optional import Extras
from .prefetch import Ahead, convert_batch
from .result import StepResult
from .spec import SessionSpec

F = TypeVar("F", bound=Callable[..., Any])


def required(method: F) -> F:
    """Mark a method that a backend must write: until then, calling it says which one is missing."""

    @functools.wraps(method)
    def missing(self: Any, *_args: Any, **_kwargs: Any) -> Any:
        owner = self if isinstance(self, type) else type(self)
        about = (method.__doc__ or "").strip().partition("\n")[0]
        raise errors.UnsupportedError(f"{owner.__module__}.{owner.__name__} has no {method.__name__} yet. {about}")

    return missing  # type: ignore[return-value]


class ScaledLoss(Protocol):
    """What ``with amp.scale_loss(...) as scaled_loss`` gives."""

    @property
    def value(self) -> Any:
        """The scaled loss, a native float32 scalar."""

    def backward(self) -> None:
        """Add the gradients of the scaled loss to the window of each optimizer named."""


class Backend(Extras):
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

        return Ahead(batches, size, functools.partial(convert_batch, to_native=native))

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


class CallState(Protocol):
    """The part of core's ``Window`` that ``Backend.compile`` sees."""

    def snapshot(self) -> tuple[Any, ...]:
        """Return the present state, hashable."""

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        """Put a state back."""
