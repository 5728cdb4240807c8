"""Where a step runs: on one device, or on the replicas of a ``tf.distribute`` strategy, which must decide alike.

A strategy runs a step once per replica, each in its own thread, one thread at a time. What must happen once for all
(deciding, updating the scale) happens between them, in a ``merge_call``; TensorFlow allows a ``tf.cond`` around an
optimizer's update nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import tensorflow as tf

from unifiedamp.backend import SessionSpec, errors

from .. import patches
from .._types import Gradient, Optimizer, Strategy, Tensor, Variable
from .agreement import check_workers, refuse_scales, scale_rows
from .packing import Packed
from .reduction import sum_of
from .replica_programs import compiled_by_xla, end_program, outside_programs
from .xla_updates import update_where, updates_alone, updates_by_xla

T = TypeVar("T")
MakePairs = Callable[[], list[tuple[Gradient, Variable]]]


class Replicas(Protocol):
    """The replicas that train one model.

    Attributes:
        count: how many there are.
        here_count: how many of them are in this process.
    """

    count: int
    here_count: int

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context in which variables are created."""

    def over_workers(self) -> bool:
        """Whether the replicas are in several processes."""

    def worker(self) -> int:
        """Return the number of this process among those of the replicas."""

    def check_alike(self, spec: SessionSpec) -> None:
        """Refuse settings that differ between processes; all of them call it.

        Raises:
            PrepareError: naming the setting.
        """

    def describe(self) -> tuple[str, str]:
        """Return the devices, for people, and what of TensorFlow runs them."""

    def check(self, call: str) -> None:
        """Refuse a call that does not come from one of these replicas.

        Raises:
            UnsupportedError: it does not.
        """

    def here(self) -> int:
        """Return the index, within this process, of the calling replica; 0 outside replicas."""

    def device(self) -> str:
        """Return the name of the calling replica's device; empty for any."""

    def calling(self) -> bool:
        """Whether a replica calls, eagerly."""

    def together(self, action: Callable[..., T], args: Sequence[object], kwargs: Mapping[str, object]) -> T:
        """Called by all replicas: run ``action`` once with all arguments; each replica gets its part of the result."""

    def sum(self, gradients: Sequence[Gradient]) -> Sequence[Gradient]:
        """Return the gradients summed over replicas."""

    def sum_of_scale(
        self, gradients: Sequence[Gradient], numbers: Sequence[Variable]
    ) -> tuple[Sequence[Gradient], list[Any]]:
        """The same of gradients under a loss scale, whose ``numbers`` must be equal on all workers; return also what
        the step must wait for.

        Raises:
            PrepareError: they differ between workers.
        """

    def once(self, action: Callable[[], T]) -> T:
        """Called by all replicas: run ``action`` once; each replica gets what it returns."""

    def updates_where(self, optimizer: Optimizer, variables: Sequence[Variable]) -> bool:
        """Whether :meth:`update_where` is for an optimizer and its variables, in the present trace."""

    def update_where(
        self, optimizer: Optimizer, applied: Tensor, pairs: MakePairs, packs: Sequence[Packed],
        count: Callable[[], None],
    ) -> None:  # fmt: skip
        """Inside :meth:`once`: apply as :meth:`apply` does where ``applied``, a bool scalar, holds, without waiting
        for it; ``count`` is called for each replica in the same program.
        """

    def apply(self, optimizer: Optimizer, pairs: MakePairs, packs: Sequence[Packed]) -> None:
        """Inside :meth:`once`: apply, on each replica, the (gradient, variable) pairs that it has.

        Args:
            optimizer: a Keras optimizer.
            pairs: returns those of the calling replica.
            packs: in which gradients may be joined.
        """

    def update(self, variable: Variable, change: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Inside :meth:`once`: call ``change``, on each replica, with its copy of a variable and of ``args``."""


class SingleReplica:
    """One device: everything happens where it is called."""

    count = here_count = 1

    def __eq__(self, other: object) -> bool:
        return type(other) is SingleReplica

    __hash__ = None  # type: ignore[assignment]  # compared, never kept in sets

    def scope(self) -> AbstractContextManager[Any]:
        """Variables are created as usual."""
        return nullcontext()

    def over_workers(self) -> bool:
        """One process."""
        return False

    def worker(self) -> int:
        """The only one."""
        return 0

    def check_alike(self, spec: SessionSpec) -> None:
        """One process."""

    def describe(self) -> tuple[str, str]:
        """Nothing to say."""
        return "one device", "none"

    def check(self, call: str) -> None:
        """Refuse a call from one of several replicas."""
        strategy = tf.distribute.get_strategy()
        if strategy.num_replicas_in_sync > 1:
            raise errors.UnsupportedError(
                f"{call}: {type(strategy).__name__} runs {strategy.num_replicas_in_sync} replicas, and the model was "
                "made outside its scope, so each would train a separate model; make model and optimizer inside "
                "'with strategy.scope():' and pass them to amp.prepare"
            )

    def here(self) -> int:
        """The only one."""
        return 0

    def device(self) -> str:
        """Any."""
        return ""

    def calling(self) -> bool:
        """No other replica has to be waited for."""
        return False

    def together(self, action: Callable[..., T], args: Sequence[object], kwargs: Mapping[str, object]) -> T:
        """Call it."""
        return action(*args, **kwargs)

    def sum(self, gradients: Sequence[Gradient]) -> Sequence[Gradient]:
        """The gradients are the sum."""
        return gradients

    def sum_of_scale(
        self, gradients: Sequence[Gradient], numbers: Sequence[Variable]
    ) -> tuple[Sequence[Gradient], list[Any]]:
        """There is one scale."""
        return gradients, []

    def once(self, action: Callable[[], T]) -> T:
        """Call it."""
        return action()

    def updates_where(self, optimizer: Optimizer, variables: Sequence[Variable]) -> bool:
        """One program holds the decision and the update."""
        return False

    def update_where(
        self, optimizer: Optimizer, applied: Tensor, pairs: MakePairs, packs: Sequence[Packed],
        count: Callable[[], None],
    ) -> None:  # fmt: skip
        """Never called."""

    def apply(self, optimizer: Optimizer, pairs: MakePairs, packs: Sequence[Packed]) -> None:
        """Apply the pairs, if there are any."""
        found = pairs()
        if found:
            optimizer.apply_gradients(found)

    def update(self, variable: Variable, change: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Call it."""
        change(variable, *args)


class MirroredReplicas:
    """The replicas of a strategy.

    Args:
        strategy: the one that the model's variables were created under.
        reduce_dtype: in which gradients are summed; None for their own.
    """

    def __init__(self, strategy: Strategy, reduce_dtype: str | None = None) -> None:
        self.strategy, self._reduce_dtype = strategy, reduce_dtype
        self.count, self.here_count = strategy.num_replicas_in_sync, len(strategy.extended.worker_devices)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MirroredReplicas) and other.strategy is self.strategy

    __hash__ = None  # type: ignore[assignment]  # compared, never kept in sets

    def scope(self) -> AbstractContextManager[Any]:
        """The strategy's."""
        return self.strategy.scope()

    def over_workers(self) -> bool:
        """Whether the strategy spans processes."""
        return isinstance(self.strategy, tf.distribute.MultiWorkerMirroredStrategy)

    def worker(self) -> int:
        """The first of TF_CONFIG is the chief, where there is one."""
        resolver = self.strategy.cluster_resolver
        if resolver is None or resolver.task_id is None:
            return 0
        chiefs = len(resolver.cluster_spec().as_dict().get("chief", ())) if resolver.task_type == "worker" else 0
        return int(resolver.task_id) + chiefs

    def check_alike(self, spec: SessionSpec) -> None:
        """Compare the sessions of all workers."""
        check_workers(self.strategy, spec)

    def describe(self) -> tuple[str, str]:
        """The devices of this worker, and the strategy."""
        names = [device.rpartition("device:")[2] for device in self.strategy.extended.worker_devices]
        workers = " of each worker" if self.over_workers() else ""
        return ", ".join(names) + workers, type(self.strategy).__name__

    def check(self, call: str) -> None:
        """Refuse a call from outside ``strategy.run``, or from another strategy's."""
        if tf.distribute.get_strategy() is self.strategy and not tf.distribute.in_cross_replica_context():
            return
        raise errors.UnsupportedError(
            f"{call}: the model is mirrored by a {type(self.strategy).__name__}, and this call comes from outside its "
            "replicas; put the loop's calls into a function and give it to strategy.run (which amp.compile may wrap)"
        )

    def here(self) -> int:
        """The index among this worker's replicas."""
        context = tf.distribute.get_replica_context()
        if context is None or tf.distribute.get_strategy() is not self.strategy:
            return 0
        index = context.replica_id_in_sync_group
        index = int(tf.get_static_value(index)) if tf.is_tensor(index) else int(index)
        return index % self.here_count

    def device(self) -> str:
        """One of this worker's."""
        return str(self.strategy.extended.worker_devices[self.here()])

    def calling(self) -> bool:
        """Inside ``strategy.run``, outside ``tf.function``."""
        mine = tf.distribute.get_strategy() is self.strategy
        return mine and tf.executing_eagerly() and not tf.distribute.in_cross_replica_context()

    def together(self, action: Callable[..., T], args: Sequence[object], kwargs: Mapping[str, object]) -> T:
        """Merge the arguments of all replicas."""
        return tf.distribute.get_replica_context().merge_call(
            lambda _strategy, *args, **kwargs: action(*args, **kwargs), args, kwargs
        )

    def sum(self, gradients: Sequence[Gradient]) -> Sequence[Gradient]:
        """All-reduce, in the dtype that was asked for."""
        return sum_of(gradients, self._reduce_dtype)

    def sum_of_scale(
        self, gradients: Sequence[Gradient], numbers: Sequence[Variable]
    ) -> tuple[Sequence[Gradient], list[Any]]:
        """Sum what stands for the numbers with the gradients: in a trace, TensorFlow sends them as one array."""
        if not self.over_workers():
            return self.sum(gradients), []
        end_program()
        dense = [each for each in gradients if not isinstance(each, tf.IndexedSlices) and each.dtype.is_floating]
        dtype = dense[0].dtype if dense else tf.float32
        rows = scale_rows([number.read_value() for number in numbers], self.count, dtype)
        *summed, found = self.sum([*gradients, rows])
        return summed, refuse_scales(tf.convert_to_tensor(found))

    def once(self, action: Callable[[], T]) -> T:
        """Merge the calls of all replicas."""
        end_program()
        return tf.distribute.get_replica_context().merge_call(lambda _strategy: action())

    def updates_where(self, optimizer: Optimizer, variables: Sequence[Variable]) -> bool:
        """Where XLA compiles, and the optimizer only updates each variable."""
        return compiled_by_xla() and updates_alone(optimizer, variables)

    def update_where(
        self, optimizer: Optimizer, applied: Tensor, pairs: MakePairs, packs: Sequence[Packed],
        count: Callable[[], None],
    ) -> None:  # fmt: skip
        """By a program on each device."""
        with outside_programs():
            update_where(self.strategy, optimizer, applied, pairs, packs, count)

    def apply(self, optimizer: Optimizer, pairs: MakePairs, packs: Sequence[Packed]) -> None:
        """Apply on each replica, without summing the gradients a second time."""
        summed = patches.gradients_summed_already(optimizer)
        with summed as options, updates_by_xla(optimizer, packs), outside_programs():
            self.strategy.extended.call_for_each_replica(lambda: optimizer.apply_gradients(pairs(), **options))

    def update(self, variable: Variable, change: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Update each copy where it is."""
        self.strategy.extended.update(variable, change, args)


def replica_counter(name: str, start: int = 0) -> Variable:
    """Return a variable that counts what happens once for all replicas.

    Args:
        name: after ``unifiedamp/``.
        start: its first value.
    """
    return tf.Variable(
        start, trainable=False, dtype=tf.int64, name=f"unifiedamp/{name}",
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )  # fmt: skip


def first_copy(variable: Variable) -> Variable:
    """Return the copy of the first replica; a variable that is not mirrored unchanged."""
    return variable.values[0] if isinstance(variable, tf.distribute.DistributedValues) else variable
