"""Training loops that others own: Lightning's, Accelerate's, Hugging Face's.

Their calls name no optimizer when a loss is differentiated, each step of an optimizer updates the scale, and gradients
stay until the loop zeroes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from .gradients import has_gradients, parameters
from .prepared import Optimizer
from .scaled_loss import TorchScaledLoss
from .scaled_steps import ScaledSteps
from .step_context import StepContext
from .training import TorchTraining

Gradient = tuple[torch.Tensor, torch.Tensor]


class HostLoops:
    """What a session does for such a loop.

    Args:
        context: what the session's roles share.
        training: the session's.
    """

    def __init__(self, context: StepContext, training: TorchTraining) -> None:
        self._context, self._training = context, training
        self._prepared, self._steps, self._scaler = context.prepared, context.steps, context.scaler

    def begin(self, backward: str, step: str) -> None:
        """Let each step of an optimizer update the scale from here on.

        Args:
            backward, step: how users of the loop differentiate a loss and step, for messages.
        """
        self._context.native.name_calls(backward, step)
        if isinstance(self._steps, ScaledSteps):
            self._steps.per_optimizer = True

    def keep_gradients(self, enabled: bool) -> None:
        """Keep gradients after a step; master weights' are dropped all the same, since no loop zeroes them."""
        self._steps.keeps_gradients = enabled and not self._prepared.masters.in_use

    @property
    def has_masters(self) -> bool:
        """Whether some parameters have master weights."""
        return self._prepared.masters.in_use

    def scale_loss(self, loss: torch.Tensor, optimizers: Sequence[Optimizer]) -> TorchScaledLoss:
        """Return the scaled loss; see ``TorchTraining.scale_whole_loss``."""
        return self._training.scale_whole_loss(loss, optimizers)

    def collect(self, optimizers: Sequence[Optimizer]) -> None:
        """Move the gradients of the models' parameters to their masters, where there are some."""
        if self._prepared.masters.in_use:
            for optimizer in optimizers:
                self._prepared.masters.model_grads_to_master_grads(optimizer)

    def has_gradients(self, optimizer: Optimizer) -> bool:
        """Return whether a parameter of the optimizer has a gradient."""
        masters = self._prepared.masters
        return has_gradients(optimizer) or next(iter(masters.model_grads(optimizer)), None) is not None

    def versions(self, optimizer: Optimizer) -> list[tuple[int, int] | None]:
        """Return what changes when a backward pass adds to the optimizer's gradients."""
        gradients = [param.grad for param in parameters(optimizer)]
        return [None if tensor is None else (id(tensor), tensor._version) for tensor in gradients]

    def found_inf(self, optimizer: Optimizer) -> bool:
        """Return whether the optimizer's unscaled gradients hold inf or nan; waits for the device."""
        found = None if self._scaler is None else self._scaler.check(optimizer)
        return found is not None and bool(found.inf.item())

    def trained(self, param: torch.Tensor) -> torch.Tensor:
        """Return what optimizers train in place of a model's parameter: its master weight, or itself."""
        return self._prepared.masters.master(param)

    def restore_gradients(self, optimizers: Sequence[Optimizer], scaled: Sequence[Gradient]) -> None:
        """Give tensors their gradients of scaled losses back, for optimizers that were prepared meanwhile."""
        for tensor, grad in scaled:
            tensor.grad = grad
        if scaled:
            self._context.native.note_scaled(optimizers)

    def release(self, optimizers: Sequence[Optimizer]) -> None:
        """Forget optimizers that are no longer used; their gradients are dropped."""
        for optimizer in optimizers:
            self._training.zero_grad(optimizer)
        gone = {id(optimizer) for optimizer in optimizers}
        kept = self._prepared.optimizers  # in place: others hold the list
        kept[:] = [each for each in kept if id(each) not in gone]

    # -- gradients that wait while another optimizer's step updates the scale ------------------------------------

    def mark(self) -> Any:
        """Return the scale in a form that later steps do not change."""
        return self._steps.mark()

    @torch.no_grad()
    def rescale(self, before: Any, models: Iterable[torch.nn.Module], done: Iterable[Optimizer]) -> None:
        """Multiply gradients by what the scale has changed by.

        Args:
            before: a mark, from when the gradients' losses were scaled.
            models: whose gradients.
            done: optimizers whose gradients carry no scale: they are unscaled, or have had their step.
        """
        after = self._steps.mark()
        if after is before or (isinstance(after, float) and after == before):
            return
        factor = after / before
        for grad in self._waiting(models, {id(param) for each in done for param in parameters(each)}):
            grad.mul_(factor.to(grad.device) if isinstance(factor, torch.Tensor) else factor)

    def _waiting(self, models: Iterable[torch.nn.Module], done: set[int]) -> Iterator[torch.Tensor]:
        for model in models:
            for param in model.parameters():
                master = self.trained(param)
                if id(master) in done:
                    continue
                if param.grad is not None:
                    yield param.grad
                if master is not param and master.grad is not None:
                    yield master.grad
