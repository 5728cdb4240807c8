"""Optimizer states between steps: as float32, or in the dtype of ``Policy.state_dtype``."""

from __future__ import annotations

import torch

Optimizer = torch.optim.Optimizer


class Moments:
    """Keeps the states of parameters between steps, and gives them to an optimizer in float32.

    Args:
        dtype: the policy's ``state_dtype``.
        seed: of stochastic rounding.
    """

    def __init__(self, dtype: str | None, seed: int) -> None:
        self._dtype, self._seed = dtype, seed

    def check(self, optimizer: Optimizer) -> None:
        """Refuse an optimizer whose states have no such form."""

    def widen(self, optimizer: Optimizer, param: torch.Tensor, wide: torch.Tensor) -> None:
        """Give the float32 parameter ``wide`` the state of ``param``, in float32."""
        if param not in optimizer.state:
            return
        state = optimizer.state.pop(param)
        for name, value in state.items():
            moment = isinstance(value, torch.Tensor) and value.shape == param.shape and value.is_floating_point()
            if moment and name != "step":
                state[name] = value.float()
        optimizer.state[wide] = state

    def narrow(self, optimizer: Optimizer, wide: torch.Tensor, param: torch.Tensor) -> None:
        """Give a parameter the state of the float32 one that stood in its place."""
        if wide in optimizer.state:
            optimizer.state[param] = optimizer.state.pop(wide)
