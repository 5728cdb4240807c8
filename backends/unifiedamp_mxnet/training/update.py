"""The update of one Trainer's weights: its own updaters, on gradients that are divided by the scale on the way."""

from __future__ import annotations

from .._types import Trainer
from ..mxnet_api import NUMPY_API
from ..patches import AttributePatch
from .gradients import Gradients
from .master_weights import MasterWeights
from .rounded_weights import RoundedWeights

LARGEST_RESCALED = 2.0**120
"""Above it ``rescale_grad`` could be a subnormal float32, which MXNet's optimizers refuse."""

ACCEPTS: dict[str, object] = {"allow_np_array": True} if NUMPY_API else {}
"""An optimizer of MXNet 2 that was made outside the main thread would refuse the arrays of Gluon."""


class WeightUpdate:
    """Runs a Trainer's updaters.

    Args:
        trainer: a ``gluon.Trainer``.
        masters: its float32 master weights, or what rounds its bfloat16 weights; None without.
    """

    def __init__(self, trainer: Trainer, masters: MasterWeights | RoundedWeights | None) -> None:
        self._trainer, self._masters = trainer, masters
        self._settings = AttributePatch(trainer._optimizer, {})
        self._updating = False

    def apply(self, contexts: Gradients, scale: float) -> None:
        """Update the weights by the gradients, each divided by ``scale``."""
        trainer = self._trainer
        settings = {"rescale_grad": trainer._scale / scale} | ACCEPTS
        self._settings = AttributePatch(trainer._optimizer, settings)
        try:
            self._settings.apply()
            self._updating = True
            for context, (updater, entries) in enumerate(zip(trainer._updaters, contexts, strict=True)):
                if entries and self._masters is not None:
                    self._masters.update(context, entries)
                elif entries:
                    updater(*zip(*entries))  # noqa: B905  # of one length
            self._updating = False
        finally:
            self._settings.undo()

    def rollback(self) -> bool:
        """Restore what an interrupted update had set; return whether it had begun and was not done."""
        self._settings.undo()
        if self._masters is not None:
            self._masters.restore()
        partly, self._updating = self._updating, False
        return partly
