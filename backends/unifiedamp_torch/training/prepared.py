"""The models and optimizers that a session has prepared."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from unifiedamp.backend import Policy

from ..layer_paths import ParamNames
from .compensations import Compensations
from .gradients import parameters
from .late_params import LateParams
from .master_weights import MasterWeights
from .param_dtypes import ParamDtypes
from .weight_updates import WeightUpdates

Optimizer = torch.optim.Optimizer


class PreparedObjects:
    """A session's models and optimizers, and the names of their parameters.

    Args:
        policy: the session's.

    Attributes:
        models, optimizers: in the order in which they were prepared.
        names: of the models' parameters.
        compensations: what rounding left out of parameters.
        masters: the master weights.
        late: parameters that came into the models since.
        dtypes: of the parameters, when they were prepared.
        updates: those of bfloat16 parameters without masters.
    """

    def __init__(self, policy: Policy) -> None:
        self.models: list[torch.nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self.names = ParamNames()
        self.compensations = Compensations(policy.update == "kahan")
        self.masters = MasterWeights(self.compensations)
        self.late = LateParams(self.optimizers, self.masters.model_param)
        self.dtypes = ParamDtypes(self.masters.model_param, self._name)
        self.updates = WeightUpdates(policy, self.compensations, self._name)

    def param_names(self, optimizer: Optimizer) -> list[str]:
        """Return the names of an optimizer's parameters."""
        return [self._name(param) for param in parameters(optimizer)]

    def gradients(self, optimizer: Optimizer) -> dict[str, torch.Tensor]:
        """Return name → gradient of the window."""
        if self.masters.in_use:
            self.masters.model_grads_to_master_grads(optimizer)
        return {self._name(param): param.grad for param in parameters(optimizer) if param.grad is not None}

    def inputs(self, optimizers: Sequence[Optimizer]) -> list[torch.Tensor] | None:
        """Return the parameters that get gradients of a loss for ``optimizers``; None for all.

        Other optimizers' parameters may be part of the graph (a generator's loss goes through the discriminator).
        """
        if len(optimizers) >= len(self.optimizers):
            return None
        params = [self.masters.model_param(param) for each in optimizers for param in parameters(each)]
        return [param for param in params if param.requires_grad] + self.late.trainable()

    def _name(self, param: torch.Tensor) -> str:
        return self.names.of(self.masters.model_param(param))
