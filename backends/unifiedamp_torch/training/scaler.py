"""The loss scaler: a ``torch.amp.GradScaler`` with bounds, hysteresis and one decision over all ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.amp.grad_scaler import OptState

from unifiedamp.backend import LossScale, float32

from . import gradients
from .native_calls import run_step
from .scale_state import DeviceScale, Found, HostScale


def world_size() -> int:
    """Return how many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def step_in_kernel(optimizer: Any, found: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Have a fused optimizer skip or apply by itself; its gradients are unscaled already."""
    try:
        optimizer.grad_scale, optimizer.found_inf = None, found
        return run_step(optimizer, *args, **kwargs)
    finally:
        leave_kernel(optimizer)


def leave_kernel(optimizer: Any) -> None:
    """Take from an optimizer what its kernel skips by; it may be gone."""
    for name in ("grad_scale", "found_inf"):
        vars(optimizer).pop(name, None)


class Scaler(torch.amp.GradScaler):
    """A GradScaler, enabled on every device, whose ``update`` is the transition of a ``LossScale``.

    torch's own tools may use it as theirs.

    Args:
        device: where the scale lives.
        settings: the loss scale in force.
        on_host: keep the state in plain numbers (looking at the device is free).
    """

    def __init__(self, device: torch.device, settings: LossScale, on_host: bool) -> None:
        super().__init__(device.type, init_scale=float32(settings.first_scale))
        self._growth_factor = settings.growth_factor
        self._backoff_factor = settings.backoff_factor
        self._growth_interval = settings.growth_interval
        self._lazy_init_scale_growth_tracker(device)
        self._nothing_found = torch.tensor([1.0, 0.0], device=device)
        self.state = (HostScale if on_host else DeviceScale)(settings, self._scale, self._growth_tracker)

    @property
    def scale_tensor(self) -> torch.Tensor:
        """The scale, a float32 scalar on the session's device."""
        return self._scale

    def check(self, optimizer: torch.optim.Optimizer) -> Found | None:
        """Unscale the optimizer's gradients unless that is done; return what was found, None without gradients."""
        record = self._per_optimizer_states[id(optimizer)]
        if record["stage"] is not OptState.UNSCALED:
            self.unscale_(optimizer)
        return record.get("found")

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the optimizer's gradients by the scale and note whether all were finite; once per step."""
        record = self._per_optimizer_states[id(optimizer)]
        if record["stage"] is OptState.UNSCALED:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        counted = self._nothing_found.clone()
        found_inf = counted[1]
        there = gradients.unscale(optimizer, self._scale.reciprocal(), found_inf)
        if world_size() > 1:
            dist.all_reduce(found_inf, dist.ReduceOp.MAX)
        record["stage"] = OptState.UNSCALED
        record["found_inf_per_device"] = {found_inf.device: found_inf} if there else {}
        record["found"] = Found(counted, found_inf) if there else None

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Step or skip, for loops of torch's own form: gradients stay.

        Returns:
            What ``optimizer.step`` returned; None where the host skipped it.
        """
        record = self._per_optimizer_states[id(optimizer)]
        if record["stage"] is OptState.STEPPED:
            raise RuntimeError("step() has already been called since the last update().")
        found = self.check(optimizer)
        if found is None:
            raise RuntimeError(f"step(): no parameter of this {type(optimizer).__name__} has a gradient.")
        record["stage"] = OptState.STEPPED
        self.state.count(found)
        if self._skips_in_kernel(optimizer):
            return step_in_kernel(optimizer, found.inf, *args, **kwargs)
        return None if found.inf.item() else run_step(optimizer, *args, **kwargs)

    def _skips_in_kernel(self, optimizer: Any) -> bool:
        # A first step skipped in the kernel would leave fused SGD's momentum buffers unwritten.
        fused = getattr(optimizer, "_step_supports_amp_scaling", False)
        return fused and bool(optimizer.state) and isinstance(self.state, DeviceScale)

    def forget(self, optimizer: torch.optim.Optimizer) -> None:
        """Drop what was found for the optimizer."""
        self._per_optimizer_states.pop(id(optimizer), None)

    def update(self, new_scale: Any = None) -> None:
        """Move the scale by what the steps since the last update found; ``new_scale`` sets it instead."""
        if new_scale is not None:
            value = new_scale.item() if isinstance(new_scale, torch.Tensor) else float(new_scale)
            self._write(scale=float32(value))
        else:
            records = [*self._per_optimizer_states.values()]
            self._per_optimizer_states.clear()  # first: an interrupted update must not be made twice
            founds = [record["found"] for record in records if record.get("found") is not None]
            if founds:
                self.state.update(founds)
            return
        self._per_optimizer_states.clear()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what ``state_dict`` of any GradScaler gave; growth settings stay the session's."""
        if not state_dict:
            raise RuntimeError("The source state dict is empty: it was saved from a disabled instance of GradScaler.")
        self._write(scale=float32(state_dict["scale"]), good_steps=int(state_dict["_growth_tracker"]))

    def _write(self, **changes: Any) -> None:
        self.state.write(replace(self.state.read(), **changes))
