"""The replicas of a session: they sum their gradients, and decide alike."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from unifiedamp.backend import Distributed, errors

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
