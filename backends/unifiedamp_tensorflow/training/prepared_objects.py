"""The prepared models and optimizers of one session."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence

import tensorflow as tf

from .._types import Model, Optimizer, Tensor, Variable
from ..distributed.distributed import TensorFlowDistributed
from ..precision.float8_scales import DelayedScaling
from .ema import TensorFlowAveraging
from .gradient_buffer import GradientBuffer
from .prepared_optimizer import PreparedOptimizer
from .trainability import Trainability
from .trained_variables import TrainedVariables

_HELD = weakref.WeakSet[Optimizer]()
"""What users hold of the optimizers of all open sessions."""


class PreparedObjects:
    """What ``amp.prepare`` was given.

    Args:
        distributed: the session's replicas.
        scaling: delayed float8 scaling, which follows steps; None for other policies.

    Attributes:
        models: in order.
        optimizers: in order.
        trainability: which parameters train now.
        averaging: the averages of the models' weights.
    """

    def __init__(self, distributed: TensorFlowDistributed, scaling: DelayedScaling | None = None) -> None:
        self._distributed, self._scaling = distributed, scaling
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
        _HELD.add(prepared.outer)
        self.averaging.join(prepared)
        if self._scaling is not None:
            prepared.follow(self._scaling)

    def add_models(self, models: Sequence[Model]) -> list[Model]:
        """Add models; return those that were not added before."""
        self.trainability.follow(models)
        new = self.new_models(models)
        self.models += new
        return new

    def new_models(self, models: Sequence[Model]) -> list[Model]:
        """Return those of some models that were not added yet."""
        return [model for model in models if not any(model is known for known in self.models)]

    def prepared_before(self, optimizer: Optimizer) -> PreparedOptimizer | None:
        """Return what is kept of an optimizer that users hold, or that they gave; None for a new one."""
        return next((each for each in self.optimizers if optimizer is each.outer or optimizer is each.inner), None)

    def find(self, optimizer: Optimizer) -> PreparedOptimizer:
        """Return what is kept of the optimizer that users hold."""
        return self._by_id[id(optimizer)]

    def is_elsewhere(self, optimizer: Optimizer | None) -> bool:
        """Return whether another open session prepared an optimizer."""
        return optimizer is not None and optimizer in _HELD and id(optimizer) not in self._by_id

    def release(self) -> None:
        """Let the optimizers go, as those of a closed session."""
        for prepared in self.optimizers:
            _HELD.discard(prepared.outer)

    def buffer(self, optimizer: Optimizer, call: str) -> GradientBuffer:
        """Return an optimizer's gradients on the calling replica.

        Raises:
            UnsupportedError: ``call`` does not come from a replica of the model.
        """
        self._distributed.replicas.check(f"amp.{call}")
        return self._by_id[id(optimizer)].buffer()

    def true_weights(self, variable: Variable) -> Tensor:
        """Return the true weights of a variable: its float32 master, or it with its compensation, or itself."""
        params, name = self._trained(variable)
        return variable if params is None else params.true(name, params.trained[name])

    def set_true_weights(self, variable: Variable, values: Tensor) -> None:
        """Set a variable, and its master or compensation, to float32 values."""
        params, name = self._trained(variable)
        if params is None:
            variable.assign(tf.cast(values, variable.dtype))
        else:
            params.set_true(name, values)

    def _trained(self, variable: Variable) -> tuple[TrainedVariables | None, str]:
        for prepared in self.optimizers:
            name = prepared.params.name_of(variable)
            if name is not None:
                return prepared.params, name
        return None, ""
