"""The calls of a training step, for a trainer that owns the loop."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..backend import StepResult
from ..errors import LossError, StepOrderError, UnsupportedError
from ..session import Amp
from ..training.step_order import Slot
from . import applied_steps
from .applied_steps import AppliedSteps

Optimizer = torch.optim.Optimizer


class HostSteps:
    """Runs a session's steps inside a trainer.

    Losses name no optimizer: one trains whatever its graph reaches. Each step of an optimizer ends an iteration, as
    trainers update their scaler after each step; gradients of other optimizers that wait are then brought to the new
    scale, so that each optimizer is given true ones.

    Args:
        amp: a session on torch.
        backward: how users of the trainer differentiate a loss, for messages.
        step: how they step, likewise.

    Attributes:
        amp: the session.
        models: the models, in the order in which they were added.
    """

    def __init__(self, amp: Amp, backward: str, step: str) -> None:
        self.amp = amp
        self.models: list[torch.nn.Module] = []
        self._backward = backward
        self._loop = amp.step_loop
        self._order: Any = amp.step_loop.order
        self._host: Any = amp.backend.interop.host_loops
        self._order.end_with_each_step()
        self._host.begin(backward, step)
        self._ran = self._complete = False
        self._window_loss: torch.Tensor | None = None
        self._replaced: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._trackers: dict[int, list[AppliedSteps]] = {}

    # -- models, optimizers, schedulers --------------------------------------------------------------------------

    def add_model(self, model: torch.nn.Module) -> None:
        """Prepare a model. Idempotent."""
        if not any(model is each for each in self.models):
            self.amp.prepare(model)
            self.models.append(model)

    def add_optimizers(self, optimizers: Sequence[Optimizer]) -> None:
        """Prepare optimizers of the models; those that trained the same parameters are forgotten. Idempotent."""
        new = [optimizer for optimizer in optimizers if id(optimizer) not in self._order.slots]
        if not new:
            return
        waiting = self._waiting(new)
        taken = self._trained(new)
        replaced = [each for each in self.optimizers if not taken.isdisjoint(self._trained([each]))]
        self._forget(replaced)
        self._replaced.update(replaced)
        self._replaced.difference_update(new)
        self.amp.prepare(*self.models, *new)
        self._host.restore_gradients(new, waiting)
        for optimizer in new:
            # A loss may have been differentiated before its optimizer was known.
            self._order.slot(optimizer, "prepare").scaled = self._ran
        self._complete = self._covers()
        self._host.keep_gradients(self._complete and len(self._order.slots) == 1)

    def _waiting(self, new: Sequence[Optimizer]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the scaled gradients of losses that were differentiated before their optimizers were known, with
        what has them.
        """
        done = self._trained(self._without_scale())
        params = [param for optimizer in new for param in _params(optimizer) if self._ran]
        waiting = [each for param in params if id(self._host.trained(param)) not in done for each in self._both(param)]
        return [(tensor, tensor.grad) for tensor in waiting if tensor.grad is not None]

    def _both(self, param: torch.Tensor) -> list[torch.Tensor]:
        """Return a parameter and its master weight, if it has one."""
        master = self._host.trained(param)
        return [param] if master is param else [param, master]

    def _trained(self, optimizers: Sequence[Optimizer]) -> set[int]:
        return {id(self._host.trained(param)) for optimizer in optimizers for param in _params(optimizer)}

    def _forget(self, gone: Sequence[Optimizer]) -> None:
        """Forget optimizers that are no longer used; their gradients are dropped."""
        self._host.release(gone)
        for optimizer in gone:
            self._order.release(optimizer)
            self._trackers.pop(id(optimizer), None)

    def _covers(self) -> bool:
        known = {id(param) for slot in self._order.slots.values() for param in _params(slot.optimizer)}
        trained = [p for model in self.models for p in model.parameters() if p.requires_grad]
        return all(id(self._host.trained(param)) in known for param in trained)

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers that are prepared."""
        return [slot.optimizer for slot in self._order.slots.values()]

    def use_optimizers(self, optimizers: Sequence[Optimizer]) -> None:
        """Prepare the optimizers of a new run, and forget those of the run before."""
        kept = {id(optimizer) for optimizer in optimizers}
        self._forget([each for each in self.optimizers if id(each) not in kept])
        self._ran = False
        self.add_optimizers(optimizers)

    def exchange_optimizers(self, optimizers: Sequence[Optimizer]) -> None:
        """Go on with other optimizers in the same run; what an open window has accumulated is theirs."""
        self.add_optimizers(optimizers)
        kept = {id(optimizer) for optimizer in optimizers}
        self._forget([each for each in self.optimizers if id(each) not in kept])

    def hold(self, scheduler: Any) -> None:
        """Hold a scheduler where all steps of its optimizer since its own last one were skipped. Idempotent."""
        applied = AppliedSteps()
        if applied_steps.hold(scheduler, applied):
            self._trackers.setdefault(id(scheduler.optimizer), []).append(applied)

    # -- one step ------------------------------------------------------------------------------------------------

    def backward(
        self, loss: torch.Tensor, by_hand: Callable[[torch.Tensor], None] | None = None, retain_graph: bool = False
    ) -> None:
        """Scale a loss and differentiate it.

        Args:
            loss: a scalar.
            by_hand: differentiates the scaled loss; None calls its ``backward``.
            retain_graph: keep the graph.

        Raises:
            LossError: not a scalar, or not connected to any parameter.
            StepOrderError: it reaches parameters whose gradients are unscaled already.
            UnsupportedError: several processes accumulate gradients of master weights.
        """
        self._loop.interruptions.check()
        slots = [*self._order.slots.values()]
        unscaled = [slot for slot in slots if slot.unscaled]
        named = [slot for slot in slots if not slot.unscaled and _trains(slot.optimizer)]
        self._check_window(named)
        if slots and not any(slot.scaled for slot in slots):
            self._window_loss = None  # a window that was given up left one; without slots, optimizers are not known yet
        self._order.enter_region()
        self._order.begin_scale(named)
        before = [self._host.versions(slot.optimizer) for slot in unscaled]
        optimizers = [slot.optimizer for slot in named]
        run = self._loop.interruptions.run
        try:
            run(slots, "backward", self._differentiate, loss, optimizers, by_hand, retain_graph)
        except LossError:
            raise
        except BaseException:
            self._drop_unowned()
            raise
        self._ran = True
        if self._loop.measure is not None:
            # Trainers divide each loss by the number of micro-batches, so that the window's loss is their sum.
            part, whole = loss.detach(), self._window_loss
            self._window_loss = part if whole is None else whole + part
        self._host.collect([slot.optimizer for slot in slots])
        for slot, versions in zip(unscaled, before, strict=True):
            if self._host.versions(slot.optimizer) != versions:
                raise self._late(slot)

    def _drop_unowned(self) -> None:
        """Drop the gradients of optimizers that are not known yet: those of others are dropped with their windows."""
        known = self._trained(self.optimizers)
        for model in self.models:
            for param in model.parameters():
                if id(self._host.trained(param)) not in known:
                    param.grad = None

    def _check_window(self, slots: Sequence[Slot]) -> None:
        """Refuse to accumulate in master weights, where DistributedDataParallel cannot reduce what they hold."""
        if self.amp.backend.spec.master_weights and _processes() > 1 and any(slot.scaled for slot in slots):
            raise UnsupportedError(
                f"{self._backward}: {_processes()} processes cannot accumulate gradients with master_weights: "
                "leave out the trainer's accumulation, or train under a mixed policy"
            )

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the scaled loss, which the caller differentiates; see :meth:`backward`."""
        found: list[torch.Tensor] = []
        self.backward(loss, found.append)
        return found[0]

    def _differentiate(
        self,
        loss: torch.Tensor,
        optimizers: list[Optimizer],
        by_hand: Callable[[torch.Tensor], None] | None,
        retain_graph: bool,
    ) -> None:
        with self._host.scale_loss(loss, optimizers) as scaled:
            if by_hand is None:
                scaled.backward(retain_graph=retain_graph)
            else:
                by_hand(scaled.value)

    def _late(self, slot: Slot) -> StepOrderError:
        self.amp.discard_step(slot.optimizer)
        return StepOrderError(
            f"{self._backward}: this loss adds to gradients of {type(slot.optimizer).__name__} that are unscaled "
            "already, by clipping or by unscaling them; differentiate every loss of a step before. The gradients were "
            "dropped"
        )

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide the gradients by the scale, once."""
        self._expect(optimizer, "unscale")
        self._loop.unscale(optimizer)

    def pending(self) -> list[Optimizer]:
        """Return the optimizers that a loss was differentiated for since their last steps."""
        return [slot.optimizer for slot in self._order.slots.values() if slot.scaled]

    def unscale_owners(self, params: Sequence[torch.Tensor] | None = None) -> None:
        """Unscale the gradients of the optimizers that train any of ``params``; None stands for all of them."""
        wanted = None if params is None else {id(param) for param in params}
        for optimizer in self.pending():
            owns = wanted is None or any(id(param) in wanted for param in _params(optimizer))
            if owns and self._host.has_gradients(optimizer):
                self.unscale(optimizer)

    def clip_norm(self, optimizer: Optimizer, max_norm: float) -> torch.Tensor:
        """Clip the global 2-norm of the true gradients; return the norm before."""
        self._expect(optimizer, "clip_grad_norm")
        norm: torch.Tensor = self.amp.clip_grad_norm(optimizer, float(max_norm))
        return norm

    def clip_value(self, optimizer: Optimizer, clip_value: float) -> None:
        """Clamp the true gradients."""
        self._expect(optimizer, "clip_grad_value")
        self.amp.clip_grad_value(optimizer, float(clip_value))

    def step(self, optimizer: Optimizer) -> StepResult:
        """Apply or skip a step, and update the scale."""
        self._expect(optimizer, "step")
        if self._loop.measure is not None and self._window_loss is not None:
            self._loop.measure.loss(self._window_loss, self._order.slot(optimizer, "step").index)
            self._window_loss = None
        alone = self._complete and len(self._order.slots) == 1
        before = None if alone else self._host.mark()
        outcome = self._loop.step(optimizer)
        if not alone:
            self._host.rescale(before, self.models, [optimizer, *self._without_scale()])
        for tracker in self._trackers.get(id(optimizer), ()):
            tracker.note(outcome)
        return outcome

    def _without_scale(self) -> list[Optimizer]:
        return [slot.optimizer for slot in self._order.slots.values() if slot.unscaled or not slot.scaled]

    def discard(self, optimizer: Optimizer) -> None:
        """Drop the gradients of a step that is not to be."""
        self.amp.discard_step(optimizer)

    def found_inf(self, optimizer: Optimizer) -> bool:
        """Return whether unscaled gradients hold inf or nan; waits for the device."""
        found: bool = self._host.found_inf(optimizer)
        return found

    def trained(self, params: Any) -> list[torch.Tensor]:
        """Return what optimizers train in place of parameters: their masters, or themselves."""
        given = [params] if isinstance(params, torch.Tensor) else list(params)
        return [self._host.trained(param) for param in given] if self._host.has_masters else given

    def _expect(self, optimizer: Optimizer, call: str) -> None:
        """Check that a loss was differentiated since the optimizer's last step.

        Raises:
            StepOrderError: none was, and gradients are scaled; or a later optimizer trains its parameters.
        """
        if optimizer in self._replaced:
            raise StepOrderError(
                f"{type(optimizer).__name__}.{call}: an optimizer that was prepared later trains parameters of this "
                "one, and a parameter has one gradient, which is the later one's; use that one, or give them different "
                "parameters"
            )
        if id(optimizer) not in self._order.slots:
            self.add_optimizers([optimizer])
        slot = self._order.slot(optimizer, call)
        if not slot.scaled and self._loop.scaling:
            raise StepOrderError(
                f"{type(optimizer).__name__}.{call}: no loss was differentiated by {self._backward} since its last "
                "step; gradients of loss.backward() carry no loss scale, and cannot be used"
            )
        slot.scaled = True


def _processes() -> int:
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def _params(optimizer: Optimizer) -> list[torch.Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def _trains(optimizer: Optimizer) -> bool:
    """Return whether any parameter of the optimizer gets gradients: a trainer may have frozen them for now."""
    return any(param.requires_grad for group in optimizer.param_groups for param in group["params"])
