"""The replicas of a session: they sum their gradients, and decide alike."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from unifiedamp.backend import Distributed, PlanRow, errors

from .replicas import Replicas, SingleReplica


class TensorFlowDistributed(Distributed):
    """Where the session's models train; known once a model is prepared.

    Args:
        move_scale: recreates the loss scale's variables in a context; does nothing without a loss scale.

    Attributes:
        replicas: the present ones.
    """

    means = "replicas of a MirroredStrategy sum their gradients before one looks at them"
    runs_replicas = True

    def __init__(self, move_scale: Callable[[AbstractContextManager[Any]], None]) -> None:
        self._move_scale = move_scale
        self.replicas: Replicas = SingleReplica()

    def replica(self) -> int:
        return self.replicas.here()

    def rows(self, reduce_dtype: str | None) -> list[PlanRow]:
        """Return the rows of ``amp.explain()`` on replicas and the sum of gradients; nothing where there is nothing to
        say.
        """
        if self.replicas.count == 1 and reduce_dtype is not None:
            note = "one replica: nothing is summed"
            return [PlanRow("gradients of ranks", reduce_dtype, "none", "no effect", note)]
        if self.replicas.count == 1:
            return []
        native, note = "ReplicaContext.all_reduce(SUM)", f"over {self.replicas.count} replicas, before the check"
        rows = [
            PlanRow("world size", str(self.replicas.count), "strategy.num_replicas_in_sync", note="replicas"),
            PlanRow("process group", *self.replicas.describe()),
        ]
        if reduce_dtype is None:
            own = "reduced in the dtype of each gradient"
            return [*rows, PlanRow("gradients of ranks", own, native, note=note)]
        native = f"tf.cast, {native}, tf.cast"
        return [*rows, PlanRow("gradients of ranks", f"reduced in {reduce_dtype}", native, note=note)]

    def place(self, replicas: Replicas, prepared_before: bool) -> None:
        """Train where the model is.

        Args:
            replicas: the model's.
            prepared_before: the session has prepared optimizers already.

        Raises:
            PrepareError: those train elsewhere.
        """
        if prepared_before and replicas != self.replicas:
            raise errors.PrepareError(
                "amp.prepare: this model and those prepared before are not under one tf.distribute strategy; make "
                "another Amp for it"
            )
        if replicas != self.replicas:
            self._move_scale(replicas.scope())
        self.replicas = replicas
