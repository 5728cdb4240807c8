"""``apex.parallel.LARC``: layer-wise adaptive rates around an optimizer that ``initialize`` made ready."""

from __future__ import annotations

from typing import Any

import torch


class LARC:
    """Scale each parameter's gradient by its layer-wise rate before the optimizer's step.

    The local rate is ``trust_coefficient * |p| / (|grad| + weight_decay * |p| + eps)``; weight decay goes into the
    gradient. ``amp.initialize`` and ``amp.scale_loss`` take the LARC or the optimizer in it.

    Args:
        optimizer: a torch optimizer; its ``step`` is skipped after an overflow, as without LARC.
        trust_coefficient: see above.
        clip: use at most the optimizer's own rate (LARC); False multiplies with it (LARS).
        eps: keeps the quotient finite.
    """

    def __init__(self, optimizer: Any, trust_coefficient: float = 0.02, clip: bool = True, eps: float = 1e-8) -> None:
        self.optim = optimizer
        self.trust_coefficient, self.clip, self.eps = trust_coefficient, clip, eps

    def __getattr__(self, name: str) -> Any:
        if name == "optim":
            raise AttributeError(name)
        return getattr(self.optim, name)

    def step(self) -> None:
        """Adapt the gradients, then call the optimizer's ``step`` without weight decay."""
        decays = [group.get("weight_decay", 0) for group in self.optim.param_groups]
        with torch.no_grad():
            for group, decay in zip(self.optim.param_groups, decays, strict=True):
                group["weight_decay"] = 0
                for param in group["params"]:
                    self._adapt(param, group["lr"], decay)
        try:
            self.optim.step()
        finally:
            for group, decay in zip(self.optim.param_groups, decays, strict=True):
                group["weight_decay"] = decay

    def _adapt(self, param: Any, rate: float, decay: float) -> None:
        if param.grad is None:
            return
        size, slope = torch.norm(param), torch.norm(param.grad)
        if size == 0 or slope == 0:
            return
        local = self.trust_coefficient * size / (slope + size * decay + self.eps)
        local = torch.clamp(local / rate, max=1.0) if self.clip else local
        param.grad += decay * param
        param.grad *= local
