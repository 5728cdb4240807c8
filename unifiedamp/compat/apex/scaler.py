"""A separate loss scale for each loss id: a session that scales and unscales, and steps nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

import unifiedamp as ua
from unifiedamp.backend import LossScale
from unifiedamp.measured import making


class PassGradients(torch.optim.Optimizer):
    """The gradients of one backward pass, as an optimizer whose step leaves them alone.

    A session that steps it looks for inf and nan, divides by the scale and updates the scale: what Apex does when the
    context of ``scale_loss`` is left, and all that it does.
    """

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # no return value, as Apex has it
        """Do nothing."""


class Named(torch.nn.Module):
    """Parameters under the names that they have in their models."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__()
        self._parameters.update(params)  # register_parameter wants no dots


class LossScaler:
    """The loss scale of one loss id: a separate session over the float32 parameters that optimizers train.

    Args:
        loss_id: its index, for messages.
        loss_scale: as ``unifiedamp.Amp`` takes it.
        params: name → float32 parameter.
        device: where the scale lives.

    Attributes:
        moves: how often gradients were divided by this scale.
    """

    def __init__(self, loss_id: int, loss_scale: LossScale, params: Mapping[str, Any], device: Any) -> None:
        self.loss_id = loss_id
        self.moves = 0
        with making("scaler"):
            self.session = ua.Amp("torch", policy="float32", loss_scale=loss_scale, device=str(device))
        # Where all parameters have 16 bits, something must stand for them while the session is made ready.
        self._bag = Named(params or {"none": torch.nn.Parameter(torch.zeros((), device=device))})
        self._gradients = PassGradients(self._bag.parameters(), {})
        self.session.prepare(self._bag, self._gradients)

    @property
    def dynamic(self) -> bool:
        """Whether the scale changes."""
        return isinstance(self.session.loss_scale_settings, ua.DynamicLossScale)

    def loss_scale(self) -> float:
        """Return the present scale."""
        return self.session.loss_scale

    @property
    def _loss_scale(self) -> float:
        """The scale; scripts written for Apex read and set it under this name."""
        return self.session.loss_scale

    @_loss_scale.setter
    def _loss_scale(self, value: float) -> None:
        self._load(float(value), 0)

    @property
    def _unskipped(self) -> int:
        """Finite steps since the scale last changed."""
        return int(self.session.state_dict()["state"]["good_steps"])

    @_unskipped.setter
    def _unskipped(self, value: int) -> None:
        self._load(self.session.loss_scale, int(value))

    def _load(self, scale: float, good_steps: int) -> None:
        self.session.load_state_dict({"loss_scaler0": {"loss_scale": scale, "unskipped": good_steps}})

    def scaled(self, loss: Any) -> Any:
        """Return the loss times the scale, a float32 tensor."""
        # Other optimizers' parameters may have gradients; those that get some now are named when they are unscaled.
        self._gradients.param_groups[0]["params"] = []
        with self.session.autocast(), self.session.scale_loss(loss, self._gradients) as handle:
            return handle.value

    def unscale(self, params: Sequence[Any]) -> ua.StepResult:
        """Divide these parameters' gradients by the scale, look for inf and nan, and move the scale.

        Returns:
            What was found, which need not be looked at yet.
        """
        self.moves += 1
        grads = [param.grad for param in params]
        self._gradients.param_groups[0]["params"] = list(params)
        outcome = self.session.step(self._gradients)
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        return outcome

    def __repr__(self) -> str:
        return f"LossScaler({self.loss_id}, {self.session.loss_scale_settings})"
