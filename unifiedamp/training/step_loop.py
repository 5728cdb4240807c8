"""The calls of one training step: core checks their order, the backend does the work."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from ..backend import Backend, Distributed, result
from ..backend.result import StepResult
from ..config.values import check_closure, check_positive
from ..errors import UnsupportedError, WrongObjectError
from ..loss_scale import LossScale, ScaleState
from ..names import StepReason
from .condition import read_condition
from .interruption import REFUSALS, GuardedLoss, Interruptions
from .scale_monitor import ScaleMonitor
from .scheduled_policy import ScheduledPolicy
from .scheduler import SchedulerCheck
from .step_order import ReplicaStepOrders, Slot, StepOrder, distinct

T = TypeVar("T")


class StepListener(Protocol):
    """What follows the steps of a loop: a recorder or a forecast."""

    step: int
    stopped: bool

    def before_unscale(self, optimizer: Any, index: int) -> None:
        """Read gradients that are complete and still scaled."""

    def after_optimizer(self, outcome: StepResult | None) -> None:
        """Note the step of one optimizer; ``outcome`` is None where a trace was replayed."""

    def after_steps(self, count: int = 1) -> None:
        """Note that ``count`` iterations have ended."""

    def due_within(self, steps: int) -> bool:
        """Return whether one of the next ``steps`` is to be recorded."""

    def discarded(self) -> None:
        """Note that the iteration in progress was dropped."""

    def state_loaded(self, optimizers: int) -> None:
        """Go on from a loaded state; ``optimizers`` are prepared."""

    def stop(self) -> None:
        """Follow no more. Idempotent."""


class StepMeasure(Protocol):
    """What follows the steps of a measured run."""

    def prepared(self) -> None:
        """Note that models and optimizers were prepared."""

    def mode(self, asked: str) -> str:
        """Return the mode of ``amp.compile`` in force."""

    def before_call(self) -> None:
        """Note that a compiled step is about to run."""

    def traced(self, step: Any) -> Any:
        """Return a step that also returns the losses that it scaled; for one that may run only while it is traced."""

    def after_call(self, output: Any, ended: bool) -> Any:
        """Note a call of a traced step, and return what the step itself returned."""

    def loss(self, loss: Any, index: int) -> None:
        """Note a loss that is differentiated for the optimizer ``index``."""

    def after_step(self, outcome: StepResult | None = None) -> None:
        """Note the end of an iteration."""


class StepLoop:
    """Runs the calls of a session's steps.

    Args:
        backend: the session's.
        accumulate_steps: micro-batches per optimizer step.
        loss_scale: the loss scale in force.

    Attributes:
        order: the order of calls in this iteration.
        monitor: polls the loss scale after steps.
        interruptions: discards the windows of interrupted calls.
        listener: follows the steps; None for none.
        owners: parameter name → number of its optimizer, as far as recorders found them.
        measure: follows the steps of a measured run; None elsewhere.
        scaling: whether losses are scaled.
        policies: changes the policy as the schedule says; None without one.
    """

    def __init__(self, backend: Backend, accumulate_steps: int, loss_scale: LossScale) -> None:
        self._backend, self._training = backend, backend.training
        self._context_form = backend.capabilities().feature("context_form")
        self.tracing: Callable[[], bool] = backend.compiler.tracing if backend.compiler else _never
        self._accumulates = accumulate_steps > 1
        self.order: StepOrder | ReplicaStepOrders = (
            ReplicaStepOrders(accumulate_steps, backend.distributed.replica)
            if backend.distributed and backend.distributed.runs_replicas
            else StepOrder(accumulate_steps)
        )
        self._reduction = _deferred(backend) if self._accumulates else None
        self.scaling = loss_scale.enabled
        self.compiled = False
        self.monitor = ScaleMonitor(backend, loss_scale)
        self.interruptions = Interruptions(backend, self.order, self._report_discarded)
        self.listener: StepListener | None = None
        self.owners: dict[str, int] = {}
        self.measure: StepMeasure | None = None
        schedule = backend.spec.schedule
        self.policies = None if schedule is None else ScheduledPolicy(backend, schedule, loss_scale, self._set_scale)
        self._schedulers = SchedulerCheck(self.tracing, lambda optimizer: id(optimizer) in self.order.slots)
        self._training.on_native_steps(
            self._after_native_steps, self.monitor.poll, lambda: self.monitor.hooks is not None
        )

    # -- calls of a step -----------------------------------------------------------------------------------------

    def enter_region(self) -> None:
        """Note that an autocast region is entered: a forward pass is about to run."""
        if self.policies is not None:
            self.switch_policy(before_step=True)
        self.order.enter_region()
        if self._reduction is not None:
            self._reduction.begin_micro_batch(self.order.may_end_window())

    def scale_loss(self, loss: T, optimizers: Any) -> AbstractContextManager[GuardedLoss[T]]:
        """See ``Amp.scale_loss``."""
        if not self._context_form.ok:
            raise UnsupportedError(
                f"amp.scale_loss: backend {self._backend.name!r} lacks this form: {self._context_form.reason}; "
                "amp.backward(closure, optimizer) means the same"
            )
        named = distinct(optimizers)
        slots = self._slots(named, "scale_loss")
        if self.order.begin_scale(slots):
            self._end_open_iteration()
        if self.measure is not None:
            self.measure.loss(loss, slots[0].index)
        return GuardedLoss(self._training.scale_loss(loss, named), slots, self.interruptions)

    def backward(self, closure: Callable[[], T], optimizers: Any) -> T:
        """See ``Amp.backward``."""
        check_closure(closure)
        named = distinct(optimizers)
        slots = self._slots(named, "backward")
        self.enter_region()
        if self.order.begin_scale(slots):
            self._end_open_iteration()
        loss: T = self.interruptions.run(slots, "backward", self._training.backward, closure, named)
        if self.measure is not None:
            self.measure.loss(loss, slots[0].index)
        return loss

    def unscale(self, optimizer: Any, call: str = "unscale") -> Slot | None:
        """Unscale the gradients of a complete window, once; return its slot, or None inside a window."""
        if self.interruptions.unsettled:
            self.interruptions.settle()
        slot = self.order.begin_step(optimizer, call)
        if self._accumulates and self.order.accumulating(slot):
            return None
        if not slot.unscaled:
            self.interruptions.run([slot], call, self._unscale, slot, refusals=REFUSALS)
        return slot

    def clip(self, call: str, argument: str, optimizer: Any, limit: float) -> Any:
        """Unscale, then run the clipping method ``call`` of the backend with ``argument``; None inside a window."""
        check_positive(limit, f"{call}: {argument}")
        slot = self.unscale(optimizer, call)
        if slot is None:
            return None
        clip = getattr(self._training, call)
        return self.interruptions.run([slot], call, clip, optimizer, limit, refusals=REFUSALS)

    def gradients(self, optimizer: Any) -> dict[str, Any]:
        """See ``Amp.gradients``."""
        return self._training.gradients(self.order.slot(optimizer, "gradients").optimizer)

    def step(self, optimizer: Any, scheduler: Any = None) -> StepResult:
        """See ``Amp.step``."""
        order, listener = self.order, self.listener
        if scheduler is not None:
            self._schedulers.check(scheduler, optimizer)
        if self.interruptions.unsettled:
            self.interruptions.settle()
        slot = order.begin_step(optimizer, "step")
        if self._reduction is not None:
            self._reduction.end_micro_batch(not order.accumulating(slot))
        if self._accumulates and order.accumulating(slot):
            order.end_micro_batch(slot)
            if order.between_micro_batches():
                self._training.end_micro_batch()
            return self._not_applied(result.ACCUMULATING)
        ends = order.ends_iteration(slot)
        try:
            if listener is not None and not slot.unscaled:
                listener.before_unscale(optimizer, slot.index)
            outcome = self._training.step(optimizer, ends)
            order.end_step(slot, ends)
        except BaseException as error:
            self.interruptions.discard([slot], "step", error)
            raise
        if scheduler is not None and outcome.applied:
            scheduler.step()
        if (listener is not None or (ends and self.scaling)) and order.leads and not self.tracing():
            self._after_step(outcome, ends)
        if self.measure is not None and ends and order.leads:
            self.measure.after_step(outcome)
        if self.policies is not None:
            self._count(int(ends))
        return outcome

    def discard(self, optimizer: Any) -> StepResult:
        """See ``Amp.discard_step``."""
        (slot,) = self._slots([optimizer], "discard_step")
        if slot.open and self._training.discards_in_step(optimizer, not self.order.accumulating(slot)):
            self._training.skip_if(True, [optimizer])
            return self.step(optimizer)
        slot.refusal = ""
        ends, opened = self.order.ends_iteration(slot), slot.open
        self._training.zero_grad(optimizer)
        self.order.end_step(slot, ends)
        self._report_discarded()
        if ends:
            self._training.update_scale()
            self._measure_end()
        if self.policies is not None and opened:
            self._count(int(ends))
        return self._not_applied(result.DISCARDED)

    def skip_if(self, condition: Any) -> None:
        """See ``Amp.skip_if``."""
        if self.interruptions.unsettled:
            self.interruptions.settle()
        slots = self.order.open_slots("skip_if")
        self._training.skip_if(read_condition(condition), [slot.optimizer for slot in slots])

    def restart(self, state: ScaleState) -> None:
        """Drop the gradients and findings of the open window, and continue from ``state``."""
        self.interruptions.forgive()
        for optimizer in self.order.pending():
            self._training.zero_grad(optimizer)
        self.order.reset()
        if self._backend.distributed:
            self._backend.distributed.state_loaded(state)
        self._set_scale(state)
        if self.listener is not None:
            self.listener.state_loaded(len(self.order.slots))

    def switch_policy(self, before_step: bool = False) -> None:
        """Put the policy of the present iteration in force, unless a window is open.

        Args:
            before_step: no replica is in the middle of a step.
        """
        policies, order = self.policies, self.order
        if policies is None or not policies.due or self.tracing() or order.windows_open():
            return
        if order.leads and (before_step or not order.several):
            policies.switch()

    # -- inside --------------------------------------------------------------------------------------------------

    def _slots(self, optimizers: list[Any], call: str) -> list[Slot]:
        if not optimizers:
            raise WrongObjectError(f"amp.{call}: name the optimizer that this loss trains; the list is empty")
        if self.interruptions.unsettled:
            self.interruptions.settle()
        return self.order.slots_of(optimizers, call)

    def _end_open_iteration(self) -> None:
        """End the iteration before: an optimizer that had its step in it gets a new loss."""
        self._training.update_scale()
        if self.listener is not None and not self.tracing():
            self.listener.after_steps()
        self._measure_end()
        if self.policies is not None:
            self._count(1, switches=False)

    def _count(self, iterations: int, switches: bool = True) -> None:
        """Count iterations for the schedule; what a trace replays is counted by its calls."""
        if self.policies is None:
            return
        if self.tracing():
            self.policies.check_seen()
        elif self.order.leads:
            self.policies.count(iterations)
            if switches:
                self.switch_policy()

    def _set_scale(self, state: ScaleState) -> None:
        self._training.update_scale()  # what steps of this iteration found was found at the scale before
        self._training.write_state(state)
        self.monitor.expect(self._training.read_state())

    def _measure_end(self) -> None:
        if self.measure is not None and self.order.leads:
            self.measure.after_step()

    def _unscale(self, slot: Slot) -> None:
        if self.listener is not None:
            self.listener.before_unscale(slot.optimizer, slot.index)
        self._training.unscale(slot.optimizer)
        slot.unscaled = True

    def _after_step(self, outcome: StepResult, ends: bool) -> None:
        if self.listener is not None:
            self.listener.after_optimizer(outcome)
            self.listener.after_steps(int(ends))
        if ends and self.scaling:
            self.monitor.after_step()

    def _after_native_steps(self, count: int = 1, iterations: int | None = None, ahead: int = 1) -> bool:
        if self.listener is not None:
            self.listener.after_steps(count if iterations is None else iterations)
        for _ in range(count if self.scaling else 0):
            self.monitor.after_step()
        if self.policies is not None:
            self.policies.count(count if iterations is None else iterations)
            self.switch_policy()
        return self.listener is not None and self.listener.due_within(ahead)

    def _report_discarded(self) -> None:
        if self.listener is not None and not self.tracing():
            self.listener.discarded()

    def _not_applied(self, reason: StepReason) -> StepResult:
        def read() -> result.StepValues:
            scale = self._training.read_state().scale
            return result.StepValues(False, False, reason, scale, scale)

        return StepResult(read)


def _deferred(backend: Backend) -> Distributed | None:
    """Return what reduces gradients in the backward pass, and can leave it to a window's last one."""
    distributed = backend.distributed
    return distributed if isinstance(distributed, Distributed) and distributed.defers_reduction else None


def _never() -> bool:
    return False
