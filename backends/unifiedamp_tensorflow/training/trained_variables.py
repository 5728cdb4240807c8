"""The parameters of one optimizer: by name, what it trains for each, and which are frozen."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from .._types import Gradient, Named, Optimizer, Tensor, Variable
from ..internals import native
from .complex_on_gpu import complex_on_gpu, refuse_addition
from .master_weights import MasterWeights, widened
from .trainability import Trainability
from .weight_updates import WeightUpdates


class TrainedVariables:
    """What an optimizer trains.

    Args:
        optimizer: the one that is applied.
        named: name → parameter.
        accumulate: micro-batches per window.
        masters: float32 master weights, which the optimizer was built over; None without.
        trainability: which parameters train now; None where the caller that makes the gradients decides.
        updates: the updates of bfloat16 parameters that are rounded; None without.
        known: name → parameter as Keras knows it; None for ``named``.

    Attributes:
        names: of the parameters, in order.
        trained: name → what the optimizer trains: a parameter, or its master.
        applied: the same as the optimizer gets it, in Keras 3 with its constraint.
        accumulators: name → variable, for windows of several micro-batches; None for others.
        condition: bool variable: whether the step of such a window is dropped; None for others.
    """

    def __init__(
        self, optimizer: Optimizer, named: Named, accumulate: int = 1, masters: MasterWeights | None = None,
        trainability: Trainability | None = None, updates: WeightUpdates | None = None, known: Named | None = None,
    ) -> None:  # fmt: skip
        self.optimizer, self.named, self.names = optimizer, named, list(named)
        self.masters, self.updates, self._trainability = masters, updates, trainability
        self.trained: Mapping[str, Variable] = named if masters is None else masters.trained
        self.applied = masters.applied if masters is not None else named if updates is not None else known or named
        self._complex_on_gpu = complex_on_gpu(self.trained)
        self.accumulators = self._make_accumulators() if accumulate > 1 else None
        self.condition = _condition() if accumulate > 1 else None
        self._name_of = {id(variable): name for name, variable in named.items()}

    def _make_accumulators(self) -> Named:
        return {
            name: tf.Variable(
                tf.zeros(variable.shape, variable.dtype), trainable=False, name="unifiedamp/accumulator",
                synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM,
            )
            for name, variable in self.trained.items()
        }  # fmt: skip

    def check_addition(self) -> None:
        """Refuse to add to what is trained where TensorFlow cannot.

        Raises:
            UnsupportedError: it cannot; see :mod:`.complex_on_gpu`.
        """
        refuse_addition(self._complex_on_gpu)

    def true(self, name: str, trained: Variable) -> Tensor:
        """Return the true weights of what is trained under a name, or of one replica's copy of it."""
        rounded = self.updates is not None and name in self.updates.rounded
        return self.updates.true(name, trained) if self.updates and rounded else trained

    def set_true(self, name: str, values: Tensor) -> None:
        """Set a parameter, and its master or compensation, to true weights."""
        param, trained = self.named[name], self.trained[name]
        if self.updates is not None and name in self.updates.rounded:
            self.updates.set(name, param, tf.cast(values, tf.float32))
            return
        for variable in (param,) if trained is param else (trained, param):
            variable.assign(tf.cast(values, variable.dtype))

    def follow_masters(self) -> None:
        """Set each parameter that has a master to it, rounded."""
        for name, param in self.named.items():
            if self.trained[name] is not param:
                param.assign(tf.cast(self.trained[name], param.dtype))

    def training(self) -> Named:
        """Return name → parameter of those that are not frozen now."""
        return self.named if self._trainability is None else self._trainability.training(self.named)

    def name_of(self, variable: Variable) -> str | None:
        """Return the name of a parameter; None for a variable of no parameter."""
        return self._name_of.get(id(native(variable)))

    def received(self, gradient: Gradient) -> Gradient:
        """Return a gradient in the dtype that windows are kept in: float32 for masters, else its own."""
        return gradient if self.masters is None else widened(gradient)


def _condition() -> Variable:
    aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA
    return tf.Variable(False, trainable=False, name="unifiedamp/condition", aggregation=aggregation)
