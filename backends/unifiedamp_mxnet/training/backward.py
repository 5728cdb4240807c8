"""Backward passes: MXNet overwrites gradients, and here they are added, for the Trainers that a loss names."""

from __future__ import annotations

from unifiedamp.backend import errors

from .._types import Array
from ..mxnet_api import base, mx
from ..precision.autocast import outside_regions
from .gradients import Stashed
from .prepared_optimizer import PreparedOptimizer
from .prepared_optimizers import PreparedOptimizers

NO_GRAPH = ("Cannot differentiate node", "The any container is empty")
"""What MXNet says when a loss has no graph, and when part of its graph was freed."""


def differentiate(losses: list[Array], heads: list[Array] | None, retain_graph: bool) -> None:
    """Differentiate the losses, starting from the head gradients (None: ones).

    Raises:
        LossError: a loss does not depend on anything that was recorded.
    """
    try:
        mx.autograd.backward(losses, heads, retain_graph)
    except base.MXNetError as error:
        if not any(text in str(error) for text in NO_GRAPH):
            raise
        raise errors.LossError(
            "amp.scale_loss: the loss is not connected to any parameter (any more). Compute it from the model's output "
            "inside 'with amp.autocast():'. MXNet frees a graph when its gradients have been taken, and with it what "
            "other losses share with it, inputs included: add the losses, or keep it by backward(retain_graph=True)"
        ) from error


class BackwardPasses:
    """Runs the session's backward passes.

    Args:
        optimizers: all Trainers of the session.
    """

    def __init__(self, optimizers: PreparedOptimizers) -> None:
        self._optimizers = optimizers
        self._stashed: list[tuple[PreparedOptimizer, list[Stashed]]] = []

    @outside_regions
    def run(
        self, losses: list[Array], heads: list[Array] | None, retain_graph: bool, named: list[PreparedOptimizer]
    ) -> None:
        """Differentiate; gradients are added to the windows of the Trainers named, and no other window changes."""
        # The common case: one Trainer, the first backward pass of its window. Nothing to protect.
        if len(self._optimizers) == 1 and not named[0].buffer.backwards:
            differentiate(losses, heads, retain_graph)
        else:
            self._protected(losses, heads, retain_graph, named)
        for prepared in named:
            prepared.buffer.add_backward(losses)

    def _protected(
        self, losses: list[Array], heads: list[Array] | None, retain_graph: bool, named: list[PreparedOptimizer]
    ) -> None:
        self._stashed = [(prepared, prepared.buffer.stash_gradients()) for prepared in self._optimizers]
        for prepared, stashed in self._stashed:
            prepared.buffer.mark_stashed(stashed)
        try:
            differentiate(losses, heads, retain_graph)
        except errors.LossError:  # it wrote nothing
            named = []
            raise
        finally:
            self.restore_gradients(named)

    def restore_gradients(self, named: list[PreparedOptimizer]) -> None:
        """Restore the stashed gradients; those of the Trainers named are added to what the pass wrote."""
        for prepared, stashed in self._stashed:
            buffer = prepared.buffer
            buffer.restore_gradients(stashed if buffer.backwards else [], add=prepared in named)
        self._stashed = []
