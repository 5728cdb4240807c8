"""Where a step runs: on one device, or on the replicas of a ``tf.distribute`` strategy, which must decide alike.

A strategy runs a step once per replica, each in a thread of its own, one thread at a time. What must happen once for
all (deciding, moving the scale) happens between them, in a ``merge_call``; TensorFlow allows a ``tf.cond`` round an
optimizer's update nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import tensorflow as tf

from unifiedamp.backend import errors

IN_STEP = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
NOT_IN_STEP = ("CentralStorageStrategy", "ParameterServerStrategyV2", "ParameterServerStrategyV1", "TPUStrategyV2",
               "TPUStrategy", "TPUStrategyV1")  # fmt: skip
"""Strategies that keep variables in one place, or devices that are not supported."""
SUMMING = "_all_reduce_sum_gradients"
"""Keras 3's method that sums gradients over replicas; Keras 2 takes an argument instead."""


class Alone:
    """One device: everything happens where it is called.

    Attributes:
        count: replicas that train together.
    """

    count = 1

    def __eq__(self, other: object) -> bool:
        return type(other) is Alone

    __hash__ = None  # type: ignore[assignment]

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context that variables are made in."""
        return nullcontext()

    def check(self, call: str) -> None:
        """Refuse a call from one of several replicas.

        Raises:
            UnsupportedError: a strategy with more than one replica is active.
        """
        strategy = tf.distribute.get_strategy()
        if strategy.num_replicas_in_sync > 1:
            raise errors.UnsupportedError(
                f"{call}: {type(strategy).__name__} runs {strategy.num_replicas_in_sync} replicas, and the model was "
                "made outside its scope, so each would train a model of its own; make model and optimizer inside "
                "'with strategy.scope():' and pass them to amp.prepare"
            )

    def here(self) -> int:
        """Return the index, within this process, of the replica that calls; 0 outside replicas."""
        return 0

    def calling(self) -> bool:
        """Whether a replica calls, eagerly."""
        return False

    def together(self, action: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """From all replicas: call ``action`` once, with the arguments of all; each gets its part of the result."""
        return action(*args, **kwargs)

    def sum(self, gradients: Sequence[Any]) -> Sequence[Any]:
        """Return the gradients summed over replicas."""
        return gradients

    def once(self, action: Callable[[], Any]) -> Any:
        """Run ``action`` once for all replicas, which all get here; each gets what it returns."""
        return action()

    def apply(self, optimizer: Any, pairs: Callable[[], list[Any]]) -> None:
        """Inside :meth:`once`: let the optimizer apply, on each replica, the (gradient, variable) pairs it has."""
        found = pairs()
        if found:
            optimizer.apply_gradients(found)


class Mirrored(Alone):
    """The replicas of a strategy.

    Args:
        strategy: what the model's variables were made under.
    """

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        self.count = strategy.num_replicas_in_sync

    def over_workers(self) -> bool:
        """Whether the replicas are in several processes."""
        return isinstance(self.strategy, tf.distribute.MultiWorkerMirroredStrategy)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mirrored) and other.strategy is self.strategy

    __hash__ = None  # type: ignore[assignment]

    def scope(self) -> AbstractContextManager[Any]:
        """See :class:`Alone`."""
        return self.strategy.scope()  # type: ignore[no-any-return]

    def check(self, call: str) -> None:
        """Refuse a call from outside ``strategy.run``, or from another strategy's.

        Raises:
            UnsupportedError: this is not a replica of the model's strategy.
        """
        if tf.distribute.get_strategy() is self.strategy and not tf.distribute.in_cross_replica_context():
            return
        raise errors.UnsupportedError(
            f"{call}: the model is mirrored by a {type(self.strategy).__name__}, and this call comes from outside its "
            "replicas; put the loop's calls into a function and give it to strategy.run (which amp.compile may wrap)"
        )

    def here(self) -> int:
        """See :class:`Alone`."""
        context = tf.distribute.get_replica_context()
        if context is None or tf.distribute.get_strategy() is not self.strategy:
            return 0
        return _index(context) % len(self.strategy.extended.worker_devices)

    def calling(self) -> bool:
        """See :class:`Alone`."""
        mine = tf.distribute.get_strategy() is self.strategy
        return mine and tf.executing_eagerly() and not tf.distribute.in_cross_replica_context()

    def together(self, action: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """See :class:`Alone`."""
        return tf.distribute.get_replica_context().merge_call(
            lambda _strategy, *args, **kwargs: action(*args, **kwargs), args, kwargs
        )

    def sum(self, gradients: Sequence[Any]) -> Sequence[Any]:
        """See :class:`Alone`."""
        return tf.distribute.get_replica_context().all_reduce(  # type: ignore[no-any-return]
            tf.distribute.ReduceOp.SUM, list(gradients)
        )

    def once(self, action: Callable[[], Any]) -> Any:
        """See :class:`Alone`."""
        return tf.distribute.get_replica_context().merge_call(lambda _strategy: action())

    def apply(self, optimizer: Any, pairs: Callable[[], list[Any]]) -> None:
        """See :class:`Alone`."""
        options = {} if hasattr(optimizer, SUMMING) else {"skip_gradients_aggregation": True}
        with _summed_already(optimizer):
            self.strategy.extended.call_for_each_replica(lambda: optimizer.apply_gradients(pairs(), **options))


def _index(context: Any) -> int:
    index = context.replica_id_in_sync_group
    return int(tf.get_static_value(index)) if tf.is_tensor(index) else int(index)


@contextmanager
def _summed_already(optimizer: Any) -> Iterator[None]:
    """Keep a Keras 3 optimizer from summing gradients that are sums over the replicas."""
    if not hasattr(optimizer, SUMMING):
        yield
        return
    vars(optimizer)[SUMMING] = list
    try:
        yield
    finally:
        del vars(optimizer)[SUMMING]


def replicas_of(variables: Sequence[Any], optimizers: Sequence[Any]) -> Alone:
    """Return where a model with these variables trains.

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
    check_kept_in_step("amp.prepare", strategy or _other_strategy(optimizers))
    for optimizer in optimizers:
        own = getattr(optimizer, "_distribution_strategy", strategy)
        if own is not strategy and (strategy is not None or own.num_replicas_in_sync > 1):
            raise errors.PrepareError(
                f"amp.prepare: this {type(optimizer).__name__} was made under {type(own).__name__}, and the model "
                f"under {type(strategy).__name__ if strategy else 'no strategy'}; make both inside one "
                "'with strategy.scope():'"
            )
    if strategy is None:
        return Alone()
    return Mirrored(strategy)


def _other_strategy(optimizers: Sequence[Any]) -> Any:
    """Return a strategy that leaves variables as they are: the optimizers', or the active one; None without."""
    found = [getattr(optimizer, "_distribution_strategy", None) for optimizer in optimizers]
    found.append(tf.distribute.get_strategy() if tf.distribute.has_strategy() else None)
    return next((one for one in found if type(one).__name__ in NOT_IN_STEP), None)


def check_scope() -> None:
    """Refuse to make a model under a strategy that is not supported.

    Raises:
        UnsupportedError: one is active.
    """
    check_kept_in_step("amp.scope", _other_strategy([]))


def check_kept_in_step(call: str, strategy: Any) -> None:
    """Refuse a strategy that does not keep its replicas in step.

    Raises:
        UnsupportedError: it is such a one.
    """
    if strategy is not None and not isinstance(strategy, IN_STEP):
        raise errors.UnsupportedError(
            f"{call}: the model is under {type(strategy).__name__}; of tf.distribute, MirroredStrategy and "
            "MultiWorkerMirroredStrategy keep all replicas in step, others are not supported: make model and optimizer "
            "under one of these, or under none"
        )


def _strategy(variable: Any) -> Any:
    """Return the strategy that mirrors a variable; None for one that is on a single device."""
    return variable.distribute_strategy if isinstance(variable, tf.distribute.DistributedValues) else None
