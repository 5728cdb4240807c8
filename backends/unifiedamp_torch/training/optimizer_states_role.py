"""The role that keeps moments in fewer bits: what a session reads and sets of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from unifiedamp.backend import OptimizerStates, converted, errors

from ..device.arrays import like, whole
from .prepared import PreparedObjects


class TorchOptimizerStates(OptimizerStates):
    """Moments in the optimizer's state, made float32 while its step runs.

    Args:
        prepared: the session's objects.
    """

    means = "optimizer.state in bfloat16, or in float8_e4m3fn with scales for blocks of 256; float32 during a step"
    dtypes = ("bfloat16", "float8")

    def __init__(self, prepared: PreparedObjects) -> None:
        self._prepared = prepared

    def steps(self) -> list[int]:
        counts = self._prepared.updates.steps
        return [int(counts.get(id(optimizer), 0)) for optimizer in self._prepared.optimizers]

    def set_steps(self, steps: Sequence[int]) -> None:
        optimizers = self._prepared.optimizers
        self._prepared.updates.steps = {id(each): count for each, count in zip(optimizers, steps, strict=True)}

    def read(self) -> list[dict[str, Any]]:
        prepared = self._prepared
        return [
            {
                f"{prepared.names.of(param)}/{moment}": whole(values).to("cpu", torch.float32, copy=True).numpy()
                for param, moment, values in prepared.updates.moments.all(optimizer)
            }
            for optimizer in prepared.optimizers
        ]

    def applied(self) -> list[int]:
        return [max(map(_steps, each.state.values()), default=0) for each in self._prepared.optimizers]

    @torch.no_grad()
    def write(self, moments: Sequence[Mapping[str, Any]], applied: Sequence[int]) -> None:
        updates = self._prepared.updates
        updates.version += 1
        for optimizer, given, count in zip(self._prepared.optimizers, moments, applied, strict=True):
            for group in optimizer.param_groups:
                for param in group["params"]:
                    for name, moment in updates.moments.names(optimizer).items():
                        param_name = self._prepared.names.of(param)
                        array = converted(given, param_name, moment, float(group["lr"]))
                        if array is not None:
                            wide = torch.empty_like(param, dtype=torch.float32, requires_grad=False)
                            values = wide.copy_(like(wide, torch.from_numpy(array)))
                            updates.moments.write(optimizer, param, name, values)
                    _set_steps(optimizer, group, param, count)

    def nbytes(self) -> int:
        return sum(map(self._prepared.updates.moments.nbytes, self._prepared.optimizers))


def _steps(state: Mapping[str, Any]) -> int:
    return int(state.get("step", 0))


def _set_steps(optimizer: torch.optim.Optimizer, group: Mapping[str, Any], param: torch.Tensor, count: int) -> None:
    """Set an optimizer's own count of a parameter's steps, which Adam's kind has."""
    state = optimizer.state.get(param)
    if not state or "betas" not in group:
        return
    if isinstance(state.get("step"), torch.Tensor):
        state["step"].fill_(count)
    elif type(optimizer).__name__ in ("Adam", "AdamW"):
        on_device = group.get("fused") or group.get("capturable")
        state["step"] = torch.tensor(float(count), device=param.device if on_device else "cpu")
    else:
        raise errors.CheckpointError(
            f"moments of another session: this {type(optimizer).__name__} has more states than these; apply one step "
            "before amp.load_state_dict, or load its own state"
        )
