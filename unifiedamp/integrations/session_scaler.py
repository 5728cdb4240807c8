"""A session in the place where Accelerate and Hugging Face's ``Trainer`` have their ``GradScaler``."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import UnsupportedError
from . import state
from .host_steps import HostSteps


class SessionScaler(torch.amp.GradScaler):
    """A ``GradScaler`` whose calls are a session's; there also where nothing is scaled, so that steps are counted.

    Args:
        steps: the session's.
    """

    def __init__(self, steps: HostSteps) -> None:
        super().__init__("cpu", enabled=False)  # what it would hold itself is the session's
        self._steps = steps
        self._loss_scale = steps.amp.loss_scale_settings

    def scale(self, outputs: Any) -> Any:
        """Return the scaled loss."""
        return self._steps.scale(outputs)

    def unscale_(self, optimizer: Any) -> None:
        """Divide the optimizer's gradients by the scale. Idempotent."""
        self._steps.unscale(optimizer)

    def step(self, optimizer: Any, closure: Any = None, **kwargs: Any) -> Any:
        """Run the closure, if any, and apply or skip the step; return what it returned, else the ``StepResult``."""
        loss = None if closure is None else closure()
        outcome = self._steps.step(optimizer)
        return outcome if closure is None else loss

    def update(self, new_scale: Any = None) -> None:
        """Do nothing: the step has updated the scale. ``new_scale`` sets it instead."""
        if new_scale is not None:
            self._steps.amp.backend.interop.scaler.update(new_scale)

    def is_enabled(self) -> bool:
        """Whether losses are scaled."""
        return self._loss_scale.enabled

    def get_scale(self) -> float:
        """Return the scale; 1.0 where nothing is scaled."""
        return self._steps.amp.loss_scale

    def get_growth_factor(self) -> float:
        """Return what the scale is multiplied by to grow."""
        return self._loss_scale.growth_factor

    def get_backoff_factor(self) -> float:
        """Return what the scale is multiplied by after inf or nan."""
        return self._loss_scale.backoff_factor

    def get_growth_interval(self) -> int:
        """Return after how many finite steps in a row the scale grows."""
        return self._loss_scale.growth_interval

    def set_growth_factor(self, new_factor: float) -> None:
        """Refuse: the settings are the session's."""
        raise _refused("growth_factor", new_factor)

    def set_backoff_factor(self, new_factor: float) -> None:
        """Refuse: the settings are the session's."""
        raise _refused("backoff_factor", new_factor)

    def set_growth_interval(self, new_interval: int) -> None:
        """Refuse: the settings are the session's."""
        raise _refused("growth_interval", new_interval)

    def state_dict(self) -> dict[str, Any]:
        """Return the session's state, in a layout that any ``GradScaler`` loads too."""
        return state.dump(self._steps.amp, self._steps.models)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the session's state, or that of a ``GradScaler``."""
        state.load(self._steps.amp, self._steps.models, state_dict)


def _refused(name: str, value: float) -> UnsupportedError:
    return UnsupportedError(
        f"scaler.set_{name}: the settings of a session cannot change; pass "
        f"loss_scale=ua.DynamicLossScale({name}={value!r}) to it"
    )
