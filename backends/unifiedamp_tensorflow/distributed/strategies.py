"""Which ``tf.distribute`` strategy a model trains under, and which ones are refused."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from unifiedamp.backend import errors

from .._types import Optimizer, Strategy, Variable
from ..internals import optimizer_strategy
from .replicas import MirroredReplicas, Replicas, SingleReplica

SYNCHRONOUS = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
CENTRAL = "all replicas read one copy of the variables from one device at each step"
PARAMETER_SERVERS = "each worker updates the variables by itself and at its own time, so none decides with the others"
TPU = "TPUs have no float16 and overflow no more in bfloat16 than in float32, so there is nothing to scale or to skip"
NOT_SYNCHRONOUS = {
    "CentralStorageStrategy": CENTRAL, "CentralStorageStrategyV1": CENTRAL,
    "ParameterServerStrategyV2": PARAMETER_SERVERS, "ParameterServerStrategyV1": PARAMETER_SERVERS,
    "TPUStrategyV2": TPU, "TPUStrategy": TPU, "TPUStrategyV1": TPU,
}  # fmt: skip
"""Strategies that are not supported, and why."""


def active_replicas(reduce_dtype: str | None) -> Replicas:
    """Return where an optimizer that is made here will train: under the active strategy, if there is one."""
    strategy = tf.distribute.get_strategy()
    return MirroredReplicas(strategy, reduce_dtype) if isinstance(strategy, SYNCHRONOUS) else SingleReplica()


def replicas_of(
    variables: Sequence[Variable], optimizers: Sequence[Optimizer], reduce_dtype: str | None = None
) -> Replicas:
    """Return where a model with these variables trains.

    Args:
        variables: the model's.
        optimizers: those that train them.
        reduce_dtype: in which the replicas sum gradients.

    Raises:
        PrepareError: variables or optimizers of several strategies, or an optimizer made outside the model's.
        UnsupportedError: a strategy that does not keep its replicas in step.
    """
    strategies = {id(found): found for found in map(_strategy, variables)}
    if len(strategies) > 1:
        raise errors.PrepareError(
            f"amp.prepare: the models' variables belong to {len(strategies)} tf.distribute strategies; make all models "
            "of a session inside one 'with strategy.scope():'"
        )
    strategy = next(iter(strategies.values()), None)
    _check_synchronous("amp.prepare", strategy or _unsupported_strategy(optimizers))
    for optimizer in optimizers:
        _check_made_under(optimizer, strategy)
    return SingleReplica() if strategy is None else MirroredReplicas(strategy, reduce_dtype)


def _check_made_under(optimizer: Optimizer, strategy: Strategy | None) -> None:
    own = optimizer_strategy(optimizer, strategy)
    if own is strategy or (strategy is None and own is not None and own.num_replicas_in_sync == 1):
        return
    raise errors.PrepareError(
        f"amp.prepare: this {type(optimizer).__name__} was made under {type(own).__name__}, and the model "
        f"under {type(strategy).__name__ if strategy else 'no strategy'}; make both inside one "
        "'with strategy.scope():'"
    )


def check_scope() -> None:
    """Refuse to create a model under a strategy, or a distribution of Keras 3, that is not supported.

    Raises:
        UnsupportedError: one is active.
    """
    _check_synchronous("amp.scope", _unsupported_strategy([]))
    check_distribution("amp.scope")


def check_distribution(call: str) -> None:
    """Refuse ``keras.distribution``, which Keras 3's TensorFlow backend takes and does nothing with.

    Raises:
        UnsupportedError: a distribution is set.
    """
    api = getattr(tf.keras, "distribution", None)
    found = None if api is None else api.distribution()
    if found is not None:
        raise errors.UnsupportedError(
            f"{call}: keras.distribution is set to {type(found).__name__}, which Keras's TensorFlow backend takes and "
            "ignores: the model would train on one device, in silence; use tf.distribute.MirroredStrategy, and undo it "
            "by keras.distribution.set_distribution(None)"
        )


def _unsupported_strategy(optimizers: Sequence[Optimizer]) -> Strategy | None:
    """Return a strategy that does not show in variables: the optimizers', or the active one; None without."""
    found = [optimizer_strategy(optimizer, None) for optimizer in optimizers]
    found.append(tf.distribute.get_strategy() if tf.distribute.has_strategy() else None)
    return next((one for one in found if type(one).__name__ in NOT_SYNCHRONOUS), None)


def _check_synchronous(call: str, strategy: Strategy | None) -> None:
    if strategy is not None and not isinstance(strategy, SYNCHRONOUS):
        name = type(strategy).__name__
        why = f" ({NOT_SYNCHRONOUS[name]})" if name in NOT_SYNCHRONOUS else ""
        raise errors.UnsupportedError(
            f"{call}: the model is under {name}{why}; of tf.distribute, MirroredStrategy and "
            "MultiWorkerMirroredStrategy keep all replicas in step, others are not supported: make model and optimizer "
            "under one of these, or under none"
        )


def _strategy(variable: Variable) -> Strategy | None:
    """Return the strategy that mirrors a variable; None for a variable on a single device."""
    return variable.distribute_strategy if isinstance(variable, tf.distribute.DistributedValues) else None
