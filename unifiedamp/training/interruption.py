"""Discards an accumulation window when an exception leaves one of its calls.

No gradient may be applied that is not the mean true gradient of whole micro-batches. A call that an error or a signal
interrupts can leave half a micro-batch in the gradients, or true gradients where scaled ones are expected. So its
windows are discarded, and the next loss starts new ones. Parameters that an interrupted update may have changed in part
cannot be restored: the session refuses to go on until the user has decided what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Generic, TypeVar

from ..backend import Backend, ScaledLoss
from ..errors import LossError, StepOrderError, UnsupportedError
from .step_order import ReplicaStepOrders, Slot, StepOrder

REFUSALS = (LossError, UnsupportedError)
"""What ``unscale`` and the clipping calls raise before anything is done, so that nothing is to be discarded."""

T = TypeVar("T")


class Interruptions:
    """Discards the windows of interrupted calls.

    Args:
        backend: the session's.
        order: the order of calls.
        discarded: called after windows were discarded.

    Attributes:
        unsettled: :meth:`settle` has something to do before the next call of a step.
    """

    def __init__(self, backend: Backend, order: StepOrder | ReplicaStepOrders, discarded: Callable[[], None]) -> None:
        self._backend = backend
        self._order = order
        self._discarded = discarded
        self.unsettled = False
        self._pending: tuple[Sequence[Slot], str, BaseException] | None = None
        self._hold: Callable[[], None] | None = None

    def hold(self, refuse: Callable[[], None] | None) -> None:
        """Call ``refuse``, which raises, before every call of a step from here on; None ends that."""
        self._hold = refuse
        self.unsettled = self._pending is not None or refuse is not None

    def settle(self) -> None:
        """Finish a :meth:`discard` that was itself interrupted; refuse the call while steps are on hold.

        Raises:
            StepOrderError: they are.
        """
        self.finish()
        if self._hold is not None:
            self._hold()

    def run(
        self, slots: Sequence[Slot], call: str, method: Callable[..., T], *args: Any, refusals: Any = LossError
    ) -> T:
        """Return ``method(*args)``; whatever it raises, except ``refusals``, discards the windows of ``slots``."""
        try:
            return method(*args)
        except refusals:
            raise
        except BaseException as error:
            self.discard(slots, call, error)
            raise

    def discard(self, slots: Sequence[Slot], call: str, error: BaseException) -> None:
        """Discard the windows of ``slots``, whose ``call`` was left by ``error``."""
        self._pending, self.unsettled = (slots, call, error), True
        self.finish()

    def finish(self) -> None:
        """Finish a :meth:`discard` that was itself interrupted, if there is one."""
        if self._pending is None:
            return
        slots, call, error = self._pending
        partly_updated = self._backend.training.rollback([slot.optimizer for slot in slots])
        if self._order.abandon(slots) and not (self._backend.compiler and self._backend.compiler.tracing()):
            self._backend.training.update_scale()
        if partly_updated:
            for slot in slots:
                slot.refusal = _refusal(slot, call, error)
        self._pending, self.unsettled = None, self._hold is not None
        self._discarded()

    def check(self) -> None:
        """Refuse a compiled call while steps are on hold, or the parameters of some optimizer may be partly updated.

        Raises:
            StepOrderError: see :meth:`Slot.check`.
        """
        self.settle()
        for slot in self._order.slots.values():
            slot.check()

    def forgive(self) -> None:
        """Let every optimizer go on: a state was loaded."""
        self.settle()
        for slot in self._order.slots.values():
            slot.refusal = ""


def _refusal(slot: Slot, call: str, error: BaseException) -> str:
    return (
        f"amp.{call} was interrupted by {type(error).__name__} while this {type(slot.optimizer).__name__} updated the "
        "parameters: some of them may hold this step's update and others not. Load a checkpoint (the model, the "
        "optimizer and amp.load_state_dict), or call amp.discard_step(optimizer) to go on with the parameters as they "
        "are"
    )


class GuardedLoss(Generic[T]):
    """What ``with amp.scale_loss(...) as scaled_loss`` gives: the backend's scaled loss, and a backward pass that
    discards its windows when it fails.

    Args:
        context: what the backend's ``scale_loss`` returned.
        slots: the optimizers named.
        interruptions: the session's.
    """

    __slots__ = ("_context", "_interruptions", "_loss", "_slots")

    def __init__(
        self, context: AbstractContextManager[ScaledLoss], slots: Sequence[Slot], interruptions: Interruptions
    ) -> None:
        self._context = context
        self._loss: Any = None
        self._slots = slots
        self._interruptions = interruptions

    def __enter__(self) -> GuardedLoss[T]:
        self._loss = self._context.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._context.__exit__(kind, error, trace)

    @property
    def value(self) -> T:
        """The scaled loss, native, in float32."""
        if self._loss is None:
            raise _not_entered()
        scaled: T = self._loss.value
        return scaled

    def backward(self, retain_graph: bool = False) -> None:
        """Add the gradients of the scaled loss to the window of each optimizer named.

        Args:
            retain_graph: keep the graph, for another loss that shares part of it.
        """
        loss = self._loss
        if loss is None:
            raise _not_entered()
        try:
            loss.backward(retain_graph)
        except LossError:
            raise
        except BaseException as error:
            self._interruptions.discard(self._slots, "scale_loss", error)
            raise


def _not_entered() -> StepOrderError:
    return StepOrderError(
        "amp.scale_loss is a context: 'with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()'"
    )
