"""Drops what parameters got before their optimizer had them, as after ``optimizer.add_param_group``.

A step clears the gradients of its optimizer's parameters alone. Those of others add up, over losses that did not train
them, under scales that have changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .gradients import parameters

Optimizer = torch.optim.Optimizer


class AddedParams:
    """Follows which parameters the prepared optimizers have.

    Args:
        model_param: returns the model's parameter of a master weight, and any other parameter unchanged.
    """

    def __init__(self, model_param: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._model_param = model_param
        self._sizes: dict[int, list[int]] = {}
        self._known: dict[int, set[int]] = {}

    def follow(self, optimizer: Optimizer) -> None:
        """Note the parameters that an optimizer has now."""
        self._sizes[id(optimizer)] = _sizes(optimizer)
        self._known[id(optimizer)] = {id(self._model_param(param)) for param in parameters(optimizer)}

    def drop_gradients(self, optimizers: Sequence[Optimizer]) -> None:
        """Drop the gradients of parameters that the optimizers were given since the last call."""
        for optimizer in optimizers:
            if _sizes(optimizer) == self._sizes[id(optimizer)]:
                continue
            known = self._known[id(optimizer)]
            for param in map(self._model_param, parameters(optimizer)):
                if id(param) not in known:
                    param.grad = None
            self.follow(optimizer)


def _sizes(optimizer: Optimizer) -> list[int]:
    return [len(group["params"]) for group in optimizer.param_groups]
