"""The order of calls within one iteration: autocast, scale_loss, (unscale, clip), step.

Plain Python, the same for every backend. A framework that replays traces (``tf.function``, ``jax.jit``) does not run
this code on each call, so the whole state is a small hashable snapshot that can be stored with a trace and restored
after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import StepOrderError, WrongObjectError


class Slot:
    """One prepared optimizer's place in the iteration.

    Attributes:
        optimizer: the prepared optimizer (held, so that its id stays its own).
        index: its position among the prepared ones.
        scaled: a loss was scaled for it since its last step.
        unscaled: its gradients have been divided by the scale.
        stepped: it has had its step in this iteration.
        micro: micro-batches of the accumulation window that are done.
        refusal: why nothing may be trained by it for now; empty when all is well.
    """

    __slots__ = ("index", "micro", "optimizer", "refusal", "scaled", "stepped", "unscaled")

    def __init__(self, optimizer: Any, index: int) -> None:
        self.optimizer = optimizer
        self.index = index
        self.scaled = self.unscaled = self.stepped = False
        self.micro = 0
        self.refusal = ""

    @property
    def open(self) -> bool:
        """Whether a window has begun: discarding it drops something."""
        return self.scaled or self.unscaled or self.micro > 0

    def check(self) -> None:
        """Refuse to train by an optimizer whose parameters an interrupted step may have updated in part.

        Raises:
            StepOrderError: with what to do.
        """
        if self.refusal:
            raise StepOrderError(self.refusal)


class StepOrder:
    """Tracks one session's iteration and says when the scale is updated.

    An iteration ends when every prepared optimizer has had its step, or when one that had it gets a new loss (so a GAN
    whose discriminator trains five times for each generator step has five iterations).

    Args:
        accumulate_steps: micro-batches per optimizer step.

    Attributes:
        ended: how many iterations this object has seen end; no part of the snapshot.
        leads: whether what happens once for all replicas happens here.
        several: whether there is another one beside it, for another replica.
    """

    leads, several = True, False

    def __init__(self, accumulate_steps: int = 1) -> None:
        self.ended = 0
        self.accumulate_steps = accumulate_steps
        self.slots: dict[int, Slot] = {}
        self.in_region = False
        self.any_scaled = False
        self._per_optimizer = False

    def end_with_each_step(self) -> None:
        """Make each step of an optimizer an iteration from here on, as in trainers that others wrote."""
        self._per_optimizer = True

    def bind(self, optimizer: Any) -> None:
        """Add a prepared optimizer. Idempotent."""
        if id(optimizer) not in self.slots:
            self.slots[id(optimizer)] = Slot(optimizer, len(self.slots))

    def release(self, optimizer: Any) -> None:
        """Forget an optimizer. Idempotent."""
        self.slots.pop(id(optimizer), None)

    def slot(self, optimizer: Any, call: str) -> Slot:
        """Return the slot of ``optimizer``.

        Raises:
            WrongObjectError: it was never prepared.
        """
        slot = self.slots.get(id(optimizer))
        if slot is None:
            raise WrongObjectError(
                f"amp.{call}: this {type(optimizer).__name__} has not been prepared; "
                "use the optimizer that amp.prepare(model, optimizer) returned"
            )
        return slot

    def slots_of(self, optimizers: Sequence[Any], call: str) -> list[Slot]:
        """Return the slots of several optimizers; see :meth:`slot`."""
        slots = []
        for optimizer in optimizers:
            slots.append(self.slots.get(id(optimizer)) or self.slot(optimizer, call))
        return slots

    def enter_region(self) -> None:
        """Note that an autocast region was entered."""
        self.in_region = True

    def accumulating(self, slot: Slot) -> bool:
        """Whether the current micro-batch is not the last of its window."""
        return slot.micro + 1 < self.accumulate_steps

    def may_end_window(self) -> bool:
        """Whether the current micro-batch is the last of some optimizer's window."""
        return not all(self.accumulating(slot) for slot in self.slots.values())

    def begin_scale(self, slots: Sequence[Slot]) -> bool:
        """Note that a loss is scaled for ``slots``; return whether the iteration before must be ended first.

        Raises:
            StepOrderError: no autocast region was entered since the last step; an interrupted step is not resolved.
        """
        if not self.in_region:
            raise StepOrderError(
                "amp.scale_loss: no loss was computed under the policy in this iteration; compute it inside "
                "'with amp.autocast():' before scaling it"
            )
        ends = False
        for slot in slots:
            if slot.refusal:
                slot.check()
            ends = ends or slot.stepped
        if ends:
            self.end_iteration()
            self.in_region = True
        for slot in slots:
            if slot.unscaled:
                raise StepOrderError(
                    "amp.scale_loss: the gradients of this iteration are already unscaled; "
                    "scale every loss before amp.unscale or amp.clip_grad_norm, or call amp.step first"
                )
        for slot in slots:
            slot.scaled = True
        self.any_scaled = True
        return ends

    def begin_step(self, optimizer: Any, call: str) -> Slot:
        """Return the slot of an optimizer for a ``step``, ``unscale`` or clipping call.

        Raises:
            WrongObjectError: it was never prepared.
            StepOrderError: no loss went through ``scale_loss`` in this iteration, for any optimizer; an interrupted
                step is not resolved.
        """
        slot = self.slots.get(id(optimizer)) or self.slot(optimizer, call)
        if slot.refusal:
            slot.check()
        if not (slot.scaled or (self.any_scaled and not slot.stepped)):
            raise _no_loss(slot, call)
        return slot

    def open_slots(self, call: str) -> list[Slot]:
        """Return the slots of the optimizers for which a loss was scaled since their last step.

        Raises:
            StepOrderError: there are none.
        """
        slots = [slot for slot in self.slots.values() if slot.scaled]
        if not slots:
            raise StepOrderError(
                f"amp.{call}: no loss went through amp.scale_loss() since the last step; call it after "
                "scaled_loss.backward() (or amp.backward) and before amp.step(optimizer)"
            )
        return slots

    def end_micro_batch(self, slot: Slot) -> None:
        """Note a micro-batch that is not its window's last."""
        slot.micro += 1
        if len(self.slots) == 1:
            self.in_region = False

    def between_micro_batches(self) -> bool:
        """Whether every optimizer has had its part of the same micro-batches."""
        return len({slot.micro for slot in self.slots.values()}) == 1

    def ends_iteration(self, slot: Slot) -> bool:
        """Whether the step of ``slot`` ends the iteration."""
        return (
            self._per_optimizer
            or len(self.slots) == 1
            or all(other.stepped or other is slot for other in self.slots.values())
        )

    def end_step(self, slot: Slot, ends: bool) -> None:
        """Note that ``slot`` had its step (or was discarded)."""
        slot.scaled = slot.unscaled = False
        slot.micro = 0
        if ends:
            self.end_iteration()
        else:
            slot.stepped = True

    def abandon(self, slots: Sequence[Slot]) -> bool:
        """Discard the windows of ``slots``; return whether that ends the iteration."""
        ends = False
        for slot in slots:
            ends = self.ends_iteration(slot)
            self.end_step(slot, ends)
        return ends

    def end_iteration(self) -> None:
        """Start the next iteration."""
        for slot in self.slots.values():
            slot.stepped = False
        self.in_region = self.any_scaled = False
        self.ended += 1

    def pending(self) -> list[Any]:
        """Return the optimizers for which something was done since their last iteration ended."""
        return [s.optimizer for s in self.slots.values() if s.scaled or s.unscaled or s.stepped or s.micro]

    def windows_open(self) -> bool:
        """Whether a window of some optimizer has begun."""
        return any(slot.open for slot in self.slots.values())

    def idle(self) -> bool:
        """Whether nothing has been done since the last iteration."""
        return not (self.in_region or self.any_scaled)

    def reset(self) -> None:
        """Forget all that has been done since the last iteration."""
        for slot in self.slots.values():
            self.end_step(slot, True)

    def snapshot(self) -> tuple[Any, ...]:
        """Return the whole state, hashable."""
        slots = tuple((s.scaled, s.unscaled, s.stepped, s.micro) for s in self.slots.values())
        return (self.in_region, self.any_scaled, slots)

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        """Put back a state that :meth:`snapshot` returned."""
        self.in_region, self.any_scaled, slots = snapshot
        for slot, values in zip(self.slots.values(), slots, strict=True):
            slot.scaled, slot.unscaled, slot.stepped, slot.micro = values


def _no_loss(slot: Slot, call: str) -> StepOrderError:
    name = type(slot.optimizer).__name__
    done = "it has already had its step in this iteration; " if slot.stepped else ""
    return StepOrderError(
        f"amp.{call}({name}): no loss went through amp.scale_loss() for it since its last step; {done}"
        "run 'with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()' first"
    )


def distinct(optimizers: Any) -> list[Any]:
    """Return one optimizer, or a list or tuple of them, as a list in which each is named once."""
    named = optimizers if isinstance(optimizers, (list, tuple)) else [optimizers]
    return list({id(optimizer): optimizer for optimizer in named}.values())


class ReplicaStepOrders:
    """One :class:`StepOrder` for each replica that this process runs; calls go to that of the calling replica.

    Args:
        accumulate_steps: micro-batches per optimizer step.
        replica: returns the index of the calling replica; 0 outside replicas.
    """

    def __init__(self, accumulate_steps: int, replica: Callable[[], int]) -> None:
        self._accumulate_steps = accumulate_steps
        self._replica = replica
        self._orders = {0: StepOrder(accumulate_steps)}

    def _here(self) -> StepOrder:
        replica = self._replica()
        if replica not in self._orders:
            order = self._orders[replica] = StepOrder(self._accumulate_steps)
            for slot in self._orders[0].slots.values():
                order.bind(slot.optimizer)
        return self._orders[replica]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._here(), name)

    def bind(self, optimizer: Any) -> None:
        """See :class:`StepOrder`."""
        for order in self._orders.values():
            order.bind(optimizer)

    def abandon(self, slots: Sequence[Slot]) -> bool:
        """See :class:`StepOrder`; those of all replicas."""
        ends = False
        for order in self._orders.values():
            ends = order.abandon([order.slots[id(slot.optimizer)] for slot in slots])
        return ends

    @property
    def leads(self) -> bool:
        """See :class:`StepOrder`."""
        return self._replica() == 0

    @property
    def several(self) -> bool:
        """See :class:`StepOrder`."""
        return len(self._orders) > 1

    def windows_open(self) -> bool:
        """See :class:`StepOrder`; on any replica."""
        return any(order.windows_open() for order in self._orders.values())

    def pending(self) -> list[Any]:
        """See :class:`StepOrder`; of all replicas."""
        every = [optimizer for order in self._orders.values() for optimizer in order.pending()]
        return list({id(optimizer): optimizer for optimizer in every}.values())

    def reset(self) -> None:
        """See :class:`StepOrder`; on all replicas."""
        for order in self._orders.values():
            order.reset()

    def snapshot(self) -> tuple[Any, ...]:
        """See :class:`StepOrder`; replicas that stand between two iterations are left out."""
        return tuple([(replica, order.snapshot()) for replica, order in self._orders.items() if not order.idle()])

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        """See :class:`StepOrder`."""
        busy = dict(snapshot)
        for replica, order in self._orders.items():
            if replica in busy:
                order.restore(busy[replica])
            elif not order.idle():
                order.reset()
