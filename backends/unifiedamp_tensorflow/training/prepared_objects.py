"""The prepared models and optimizers of one session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .._types import Model, Optimizer, Variable
from ..distributed.distributed import TensorFlowDistributed
from .ema import TensorFlowAveraging
from .gradient_buffer import GradientBuffer
from .prepared_optimizer import PreparedOptimizer
from .trainability import Trainability


class PreparedObjects:
    """What ``amp.prepare`` was given.

    Args:
        distributed: the session's replicas.

    Attributes:
        models: in order.
        optimizers: in order.
        trainability: which parameters train now.
        averaging: the averages of the models' weights.
    """

    def __init__(self, distributed: TensorFlowDistributed) -> None:
        self._distributed = distributed
        self.models: list[Model] = []
        self.optimizers: list[PreparedOptimizer] = []
        self._by_id: dict[int, PreparedOptimizer] = {}
        self.trainability = Trainability(self.owned)
        self.averaging = TensorFlowAveraging(self.optimizers, self.models)

    def owned(self) -> Iterator[int]:
        """Yield the ids of the variables that the optimizers train."""
        for prepared in self.optimizers:
            yield from map(id, prepared.params.named.values())

    def add_optimizer(self, prepared: PreparedOptimizer) -> None:
        """Add an optimizer."""
        prepared.number = len(self.optimizers)
        self.optimizers.append(prepared)
        self._by_id[id(prepared.outer)] = prepared
        self.averaging.join(prepared)

    def add_models(self, models: Sequence[Model]) -> list[Model]:
        """Add models; return those that were not added before."""
        self.trainability.follow(models)
        new = [model for model in models if not any(model is known for known in self.models)]
        self.models += new
        return new

    def find(self, optimizer: Optimizer) -> PreparedOptimizer:
        """Return what is kept of the optimizer that users hold."""
        return self._by_id[id(optimizer)]

    def buffer(self, optimizer: Optimizer, call: str) -> GradientBuffer:
        """Return an optimizer's gradients on the calling replica.

        Raises:
            UnsupportedError: ``call`` does not come from a replica of the model.
        """
        self._distributed.replicas.check(f"amp.{call}")
        return self._by_id[id(optimizer)].buffer()

    def master_of(self, variable: Variable) -> Variable | None:
        """Return the float32 master of a variable; None where it has none."""
        masters = (prepared.params.masters for prepared in self.optimizers)
        found = (each.master_of(variable) for each in masters if each is not None)
        return next((master for master in found if master is not None), None)
