"""The three roles that every backend has: its device, its precision and its training calls.

The order of calls is core's business (``unifiedamp.training.step_order``). When a method here runs, the order is right:
``scale_loss`` follows ``autocast``, and ``unscale`` runs at most once per step, never inside an accumulation window.
Every method may be called while the framework traces a compiled step; a method that cannot be traced says so. Global
framework state is restored on exit, also when an exception passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ..loss_scale import ScaleState
from ..names import NumpyArray
from ..policy import Policy
from .capabilities import NonFiniteReport
from .prefetch import prefetch_in_thread
from .required import required, required_attribute
from .result import StepResult

Tensor = Any
"""A native array."""
Model = Any
"""A native model."""
Optimizer = Any
"""A native optimizer (Gluon: a Trainer)."""


class ScaledLoss(Protocol):
    """What ``with amp.scale_loss(...) as scaled_loss`` yields."""

    @property
    def value(self) -> Tensor:
        """The scaled loss, a native float32 scalar."""

    def backward(self, retain_graph: bool = False) -> None:
        """Add the gradients of the scaled loss to the window of each optimizer named.

        Args:
            retain_graph: keep the graph, for another loss that shares part of it, also where the framework would free
                it.
        """


class Device:
    """The session's device: arrays in and out, memory.

    Attributes:
        name: the device in the framework's spelling ("cpu", "cuda:0").
        reads_without_sync: whether reading the loss scale waits for nothing (eager on a CPU). Core then polls it after
            every step.
    """

    name: str = required_attribute("The device in the framework's spelling.")
    reads_without_sync: bool = True

    @required
    def to_native(self, array: Any, dtype: str | None = None) -> Tensor:
        """Return an array as a native tensor on the session's device, without a copy where possible.

        Args:
            array: a numpy array, a list, a number, an object with DLPack, or a native tensor.
            dtype: one of ``ARRAY_DTYPES``, whatever ``array`` has. None: floating-point input of more than 16 bits is
                returned in float32; float16, bfloat16 and everything that is not floating-point keep their dtype, and
                so does a native tensor.

        Raises:
            UnsupportedError: the framework has no tensors of ``dtype`` here.
            WrongObjectError: the array holds no numbers; :func:`host_array` refuses most of these.
        """

    @required
    def to_numpy(self, tensor: Tensor) -> NumpyArray:
        """Return a native tensor as a numpy array; bfloat16 is returned as float32."""

    def means(self, tensors: Sequence[Tensor]) -> list[float]:
        """Return the mean of each tensor. The default reads them one by one; a backend may synchronize once for all."""
        return [float(self.to_numpy(tensor).astype("float64").mean()) for tensor in tensors]

    def prefetch(self, batches: Iterable[Any], size: int) -> Iterable[Any]:
        """Return the batches as native ones on the session's device, ``size`` of them prepared ahead.

        The default converts them by :meth:`to_native` in a thread.
        """
        return prefetch_in_thread(batches, size, self.to_native)

    def peak_memory(self) -> int | None:
        """Return the peak memory of the framework on the device in bytes; None where it keeps no count."""
        return None

    def out_of_memory(self, error: BaseException) -> bool:
        """Return whether an exception means that the device or the host ran out of memory."""
        return isinstance(error, MemoryError)


class Precision:
    """Where the policy applies: model creation, autocast regions, inference."""

    @required
    def scope(self) -> AbstractContextManager[None]:
        """Return a context in which native objects are created under the policy."""

    @required
    def autocast(self, enabled: bool, policy: Policy | None) -> AbstractContextManager[Any]:
        """Return a region that runs under the policy (``policy`` replaces the session's); nestable, thread-local."""

    @required
    def inference(self, models: Sequence[Model]) -> AbstractContextManager[Any]:
        """Return a region under the policy that records no gradients, with ``models`` in evaluation mode."""


class StepFollower(Protocol):
    """What follows steps that core's calls do not see."""

    def before_step(self) -> None:
        """A step is about to run."""

    def native_loss(self, loss: Any) -> None:
        """A loss, native, is about to be differentiated."""

    def native_step(self, loss: Any = None, more: bool = False) -> None:
        """A step has run.

        Args:
            loss: its loss, a native scalar or a function that returns a number.
            more: whether further steps ran in the same call, and are reported next.
        """


class Training:
    """From ``prepare`` to the end of a step, and the state of the loss scale."""

    # -- setting up ----------------------------------------------------------------------------------------------

    @required
    def is_model(self, obj: object) -> bool:
        """Return whether ``obj`` is a model of this framework (core sorts the arguments of ``prepare`` by it)."""

    @required
    def prepare(
        self, models: Sequence[Model], optimizers: Sequence[Optimizer]
    ) -> tuple[Sequence[Model], Sequence[Optimizer]]:
        """Bind optimizers to parameters, create scaler state, check what would fail later.

        May be called again to add objects.

        Returns:
            The models and optimizers to use from now on, in order: native objects, possibly the same ones. Each
            returned optimizer is then passed to the methods below.

        Raises:
            WrongObjectError: an object that is not a model or optimizer of this framework.
            ParamDtypeError: trainable parameters that the policy cannot train.
            PrepareError: an optimizer whose parameters are not the models', and other objects that fail later.
        """

    # -- one step ------------------------------------------------------------------------------------------------

    @required
    def scale_loss(self, loss: Tensor, optimizers: Sequence[Optimizer]) -> AbstractContextManager[ScaledLoss]:
        """Multiply ``loss`` by the scale in float32 and divide it by ``accumulate_steps``.

        Called where the capability ``context_form`` is declared.

        Raises:
            LossError: the loss is not a scalar, or not connected to any parameter.
        """

    @required
    def backward(self, closure: Callable[[], Tensor], optimizers: Sequence[Optimizer]) -> Tensor:
        """Run ``closure`` under autocast, scale its loss, differentiate; return the unscaled loss.

        A framework with ``context_form`` returns ``backward_in_context(...)``.
        """

    @required
    def unscale(self, optimizer: Optimizer) -> None:
        """Check the raw gradients of the window for inf and nan, then divide them by the scale, in place."""

    @required
    def clip_grad_norm(self, optimizer: Optimizer, max_norm: float) -> Tensor:
        """Scale unscaled gradients so that their global 2-norm is at most ``max_norm``; return the norm before."""

    @required
    def clip_grad_value(self, optimizer: Optimizer, clip_value: float) -> None:
        """Clamp each element of the unscaled gradients to [-clip_value, clip_value]."""

    @required
    def gradients(self, optimizer: Optimizer) -> dict[str, Tensor]:
        """Return name → native gradient of the window; parameters without a gradient are left out.

        Gradients are edited in place; where the framework's arrays are immutable, by assigning to a name of this
        mapping.
        """

    @required
    def step(self, optimizer: Optimizer, update_scale: bool) -> StepResult:
        """Unscale unless done, apply or skip, zero the window's gradients, count.

        Args:
            optimizer: a prepared optimizer.
            update_scale: this step ends the iteration: update the scale by the findings of all its steps.
        """

    @required
    def update_scale(self) -> None:
        """End the iteration: update the scale by the findings since the last update; without any, leave it."""

    @required
    def zero_grad(self, optimizer: Optimizer) -> None:
        """Drop the window's gradients, and what ``unscale`` found for them."""

    @required
    def skip_if(self, condition: bool | Tensor, optimizers: Sequence[Optimizer]) -> None:
        """Drop the next step of each of these optimizers where the condition holds on any rank or replica.

        :meth:`step` then applies nothing, moves no average, counts nothing and leaves the scale; its reason is
        ``DISCARDED``. Where gradients are not finite either, it is a skipped step like any other. Conditions of several
        calls are joined by "or"; :meth:`step`, :meth:`zero_grad` and :meth:`rollback` forget them. Does not wait for
        the device where :meth:`step` does not; where several ranks train together, all call it.

        Args:
            condition: a bool, or a tensor that may be of another framework.
            optimizers: prepared ones, whose windows are open.

        Raises:
            WrongObjectError: a tensor that is no native scalar of bools or real numbers. Nothing is done.
        """

    def discards_in_step(self, optimizer: Optimizer, last: bool) -> bool:
        """Return whether the step that other ranks are about to make must drop this open window; the default does not.

        Called before a window is discarded. Core then makes the step with a condition that holds.

        Args:
            optimizer: whose window.
            last: whether its last micro-batch is done, so that other ranks may be at the step.

        Raises:
            StepOrderError: other ranks keep the window that this one is to discard. Nothing is done.
        """
        return False

    def end_micro_batch(self) -> None:
        """Note that a micro-batch ended inside an accumulation window, for all optimizers. The default does nothing."""

    @required
    def rollback(self, optimizers: Sequence[Optimizer]) -> bool:
        """Restore these optimizers to where they were before their windows: an exception left one of their calls.

        Called after any exception or signal out of ``scaled_loss.backward``, ``unscale``, ``clip_grad_norm``,
        ``clip_grad_value``, ``step`` or a compiled step, at whatever point it came; also while tracing. Gradients must
        be gone (accumulated, unscaled, or copied to master weights), the findings in them forgotten, and what the call
        had set temporarily restored. May be called twice.

        Returns:
            Whether the framework's own update had begun, so that parameters may be partly updated. Core then refuses
            to continue until the user discards the step or loads a state.
        """

    # -- state ---------------------------------------------------------------------------------------------------

    @required
    def read_state(self) -> ScaleState:
        """Read the scale and its counters as plain numbers; may synchronize with the device."""

    def poll_state(self) -> ScaleState | None:
        """Return the scale and its counters as of some moment since the last poll, without synchronizing.

        None where no values have arrived yet. The default reads, which may synchronize.
        """
        return self.read_state()

    @required
    def write_state(self, state: ScaleState) -> None:
        """Set the scale and its counters."""

    def on_native_steps(
        self, after_step: Callable[..., bool], poll: Callable[[], None], observed: Callable[[], bool]
    ) -> None:
        """Report steps that core's own calls do not see; called once.

        A framework whose own training loop takes the prepared optimizer (Keras's ``fit``), or that replays a step
        without running its Python, calls these after such steps. They may raise ``LossScaleExhausted``. The default
        does nothing.

        Args:
            after_step: counts a step (or the number given), polls the scale when it is due, and notifies the
                recorder; a second argument is the number of iterations that ended with them, where windows have
                several steps, and a third how many steps the next call will run. Returns whether one of these is to
                be recorded.
            poll: polls the scale now.
            observed: returns whether the scale has observers.
        """

    def follow_native_steps(self, follower: StepFollower) -> None:
        """Report each step of the framework's own loops to a follower (a measured run); the default reports none.

        Args:
            follower: called before and after each such step, and from user code's traces of a step.
        """

    def run_uncompiled(self, enabled: bool) -> None:
        """Run the framework's own compiled functions as Python, from here on; the default does nothing.

        Asked for while each layer is recorded, and not where ``amp.compile`` is used.
        """

    def call_from_trace(self, fn: Callable[..., None], tensors: Sequence[Tensor]) -> None:
        """Have ``fn`` called with the values of tensors each time that a trace of the user's has run.

        Where ``fn`` is called for several times together, it gets ``more=True`` but for the last. Called while
        :meth:`Compiler.tracing` is true outside the steps of ``amp.compile``. The default does nothing.
        """

    # -- skipped steps -------------------------------------------------------------------------------------------

    def collect_nonfinite_report(self, enabled: bool) -> None:
        """Inspect the next skipped step for :meth:`nonfinite_report`, even if that synchronizes."""

    def keep_skip_report(self, enabled: bool) -> None:
        """Keep on the device what :meth:`nonfinite_report` needs of the last skipped step, where that costs no wait."""

    def nonfinite_report(self) -> NonFiniteReport:
        """Return where the last non-finite step came from, as far as it is known."""
        return NonFiniteReport()


def backward_in_context(
    precision: Precision, training: Training, closure: Callable[[], Tensor], optimizers: Sequence[Optimizer]
) -> Tensor:
    """Run ``Training.backward`` by the context form: autocast, ``scale_loss``, ``scaled_loss.backward()``."""
    with precision.autocast(True, None):
        loss = closure()
    with training.scale_loss(loss, optimizers) as scaled:
        scaled.backward()
    return loss
