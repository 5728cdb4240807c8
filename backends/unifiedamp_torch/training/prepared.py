"""The models and optimizers that a session has prepared."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from unifiedamp.backend import Policy, errors

from ..layer_paths import ParamNames
from .added_params import AddedParams
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
        sparse: ids of the parameters that get sparse gradients.
        names: of the models' parameters.
        compensations: what rounding left out of parameters.
        masters: the master weights.
        added: parameters that came to the optimizers since.
        late: parameters that came into the models since.
        dtypes: of the parameters, when they were prepared.
        updates: those of bfloat16 parameters without masters.
    """

    def __init__(self, policy: Policy) -> None:
        self.models: list[torch.nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self.sparse: set[int] = set()
        self.names = ParamNames()
        self._sharing = False  # two optimizers train one parameter
        self.compensations = Compensations(policy.update == "kahan")
        self.masters = MasterWeights(self.compensations)
        self.added = AddedParams(self.masters.model_param)
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

    def without(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the parameters that optimizers train, but for ``inputs``."""
        kept = {id(param) for param in inputs}
        trained = [self.masters.model_param(param) for each in self.optimizers for param in parameters(each)]
        return [param for param in trained if id(param) not in kept]

    def add(self, optimizers: Sequence[Optimizer]) -> None:
        """Add further optimizers."""
        for optimizer in optimizers:
            self._sharing |= any(self._shared(optimizer, other) for other in self.optimizers)
            self.optimizers.append(optimizer)
            self.added.follow(optimizer)

    def check_shared(self, optimizers: Sequence[Optimizer], pending: Callable[[], Sequence[Optimizer]]) -> None:
        """Refuse a loss for optimizers over one parameter: it has one gradient, which cannot hold the windows of both.

        Args:
            optimizers: those that the loss names.
            pending: returns those that have an open window.

        Raises:
            StepOrderError: naming both, and the parameters.
        """
        if not self._sharing:
            return
        for one in optimizers:
            for other in [*optimizers, *pending()]:
                shared = self._shared(one, other) if other is not one else []
                if shared:
                    raise errors.StepOrderError(
                        f"amp.scale_loss: {type(one).__name__} and another {type(other).__name__} train "
                        f"{errors.first_names(map(self._name, shared))}, and a parameter has one gradient: end the "
                        "step of one (amp.step or amp.discard_step) before a loss for the other, or give them "
                        "different parameters"
                    )

    def _shared(self, one: Optimizer, other: Optimizer) -> list[torch.Tensor]:
        held = {id(self.masters.model_param(param)) for param in parameters(other)}
        return [param for param in parameters(one) if id(self.masters.model_param(param)) in held]

    def _name(self, param: torch.Tensor) -> str:
        return self.names.of(self.masters.model_param(param))
