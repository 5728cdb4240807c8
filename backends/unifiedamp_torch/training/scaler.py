"""The loss scaler: a ``torch.amp.GradScaler`` with bounds, hysteresis and one decision over all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch.amp.grad_scaler import OptState

from unifiedamp.backend import LossScale, float32

from ..distributed.agreement import Agreement
from ..distributed.loaded import LoadedStates
from ..distributed.ranks import TrainingRanks
from . import gradients
from .ema import MovingAverages
from .kernel_skips import skips_in_kernel, step_in_kernel
from .native_calls import run_step
from .scale_state import DeviceScale, Found, HostScale, ScaleHolder

OTHER_SCALES = ", or use loss_scale=StaticLossScale(...) or a policy without a loss scale, such as 'mixed_bfloat16'"


class Scaler(torch.amp.GradScaler):
    """A GradScaler, enabled on every device, whose ``update`` is the transition of a ``LossScale``.

    torch's own tools can use it as a GradScaler.

    Args:
        device: where the scale lives.
        settings: the loss scale in force.
        on_host: keep the state in plain numbers (reading the device waits for nothing).
        ranks: those that skip together; None for all.
        averages: the session's, which steps of torch's own form move too; None for none.
        agreement: compares the ranks' scales in the first step; None for none.
        loaded: compares the states that ranks load later; None for none.

    Attributes:
        of_session: it is one's, see ``patches.watch_torch``.
        scale_tensor: the scale, a float32 scalar on the device.
        state: the scale and its counters.
    """

    of_session: ClassVar[bool] = True

    def __init__(
        self,
        device: torch.device,
        settings: LossScale,
        on_host: bool,
        ranks: TrainingRanks | None = None,
        averages: MovingAverages | None = None,
        agreement: Agreement | None = None,
        loaded: LoadedStates | None = None,
    ) -> None:
        super().__init__(device.type, init_scale=float32(settings.first_scale))
        self._growth_factor = settings.growth_factor
        self._backoff_factor = settings.backoff_factor
        self._growth_interval = settings.growth_interval
        self._lazy_init_scale_growth_tracker(device)
        self._ranks, self._averages, self._agreement = ranks or TrainingRanks(), averages, agreement
        self._loaded = loaded
        self._changing = str(settings) if settings.kind == "dynamic" else ""
        self._nothing_found = torch.tensor([1.0, 0.0], device=device)
        assert self._scale is not None
        assert self._growth_tracker is not None
        self.scale_tensor: torch.Tensor = self._scale
        holder: type[HostScale] | type[DeviceScale] = HostScale if on_host else DeviceScale
        self.state: ScaleHolder = holder(settings, self._scale, self._growth_tracker)

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Return a float32 loss times the scale."""
        scale = self.scale_tensor
        return loss * (scale if scale.device == loss.device else scale.to(loss.device, non_blocking=True))

    def check(self, optimizer: torch.optim.Optimizer) -> Found | None:
        """Unscale the optimizer's gradients unless done; return what was found, None without gradients."""
        record = self._per_optimizer_states[id(optimizer)]
        if record["stage"] is not OptState.UNSCALED:
            self._unscale(optimizer, record)
        return record.get("found")

    def is_unscaled(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether the optimizer's gradients have been unscaled since its last step."""
        return self._per_optimizer_states.get(id(optimizer), {}).get("stage") is OptState.UNSCALED

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the optimizer's gradients by the scale and note whether all were finite; once per step."""
        record = self._per_optimizer_states[id(optimizer)]
        if record["stage"] is OptState.UNSCALED:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        self._unscale(optimizer, record)

    def _unscale(self, optimizer: torch.optim.Optimizer, record: dict[str, Any]) -> None:
        if self._changing:
            self._ranks.refuse_joining(f"would go on with another loss scale ({self._changing})", OTHER_SCALES)
        if self._agreement is not None:
            self._agreement.check_first_step()
        counted = self._nothing_found.clone()
        found_inf = counted[1]
        there = gradients.unscale(optimizer, self.scale_tensor.reciprocal(), found_inf)
        if self._ranks.groups and not self._ranks.have_alike(optimizer):
            there = self._decide(counted, there)
        record["stage"] = OptState.UNSCALED
        record["found_inf_per_device"] = {found_inf.device: found_inf} if there else {}
        record["found"] = Found(counted, found_inf) if there else None

    def drop_if(self, optimizer: torch.optim.Optimizer, condition: torch.Tensor) -> Found:
        """Drop a step whose gradients were checked where ``condition`` is 1; return what was found, with that."""
        record = self._per_optimizer_states[id(optimizer)]
        found: Found = record["found"].dropped_if(condition)
        record["found"] = found
        return found

    def _decide(self, counted: torch.Tensor, there: bool) -> bool:
        """Reduce what was found over the ranks; return whether one of them has gradients.

        A rank without gradients takes part: it skips, counts and scales as the others do.
        """
        if not there:
            counted[0] = 0.0
        self._ranks.reduce(counted)
        return there or bool(counted[0].item())

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
        averages = self._averages
        if averages is not None:
            averages.begin(optimizer, False)
        record["stage"] = OptState.STEPPED
        self.state.count(found)
        outcome = self._run(optimizer, found.inf, *args, **kwargs)
        if averages is not None:
            averages.end(optimizer, found)
        return outcome

    def _run(self, optimizer: torch.optim.Optimizer, found: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self._skips_in_kernel(optimizer):
            return step_in_kernel(optimizer, found, *args, **kwargs)
        return None if found.item() else run_step(optimizer, *args, **kwargs)

    def _skips_in_kernel(self, optimizer: Any) -> bool:
        # A first step skipped in the kernel would leave fused SGD's momentum buffers unwritten.
        return skips_in_kernel(optimizer) and bool(optimizer.state) and isinstance(self.state, DeviceScale)

    def forget(self, optimizer: torch.optim.Optimizer) -> None:
        """Drop what was found in the optimizer's gradients."""
        self._per_optimizer_states.pop(id(optimizer), None)

    def update(self, new_scale: Any = None) -> None:
        """Update the scale by the findings of the steps since the last update; ``new_scale`` sets it instead."""
        records = [*self._per_optimizer_states.values()]
        self._per_optimizer_states.clear()  # first: an interrupted update must not run twice
        if new_scale is not None:
            value = new_scale.item() if isinstance(new_scale, torch.Tensor) else float(new_scale)
            self._write(scale=float32(value))
            return
        founds = [record["found"] for record in records if record.get("found") is not None]
        if founds:
            self.state.update(founds)

    def update_by(self, optimizer: torch.optim.Optimizer) -> None:
        """Update the scale by the finding of one optimizer; what was found in others' gradients stays."""
        found = self._per_optimizer_states.pop(id(optimizer), {}).get("found")
        if found is not None:
            self.state.update([found])

    def findings(self) -> dict[int, dict[str, Any]]:
        """Return a copy of what was found in gradients so far in this iteration, by optimizer."""
        return {key: dict(record) for key, record in self._per_optimizer_states.items()}

    def restore_findings(self, findings: Mapping[int, Mapping[str, Any]]) -> None:
        """Restore what :meth:`findings` returned."""
        states = self._per_optimizer_states
        if states or findings:
            states.clear()
            states.update({key: dict(record) for key, record in findings.items()})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what ``state_dict`` of any GradScaler gave; growth settings stay the session's."""
        if not state_dict:
            raise RuntimeError("The source state dict is empty: it was saved from a disabled instance of GradScaler.")
        self._write(scale=float32(state_dict["scale"]), good_steps=int(state_dict["_growth_tracker"]))

    def _write(self, **changes: Any) -> None:
        state = replace(self.state.read(), **changes)
        self.state.write(state)
        if self._loaded is not None:
            self._loaded.note(state)
