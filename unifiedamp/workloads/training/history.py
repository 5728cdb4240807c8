"""The history of a run: the loss of every batch, the loss scale, a row per epoch; and its JSON log."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...output.files import write_whole


@dataclass
class History:
    """Collects native losses and reads them on request, so that training steps do not synchronize.

    Attributes:
        losses: the losses of all batches read so far.
        scales: [optimizer step, loss scale after it, skipped steps so far], at each logged step.
        epochs: one mapping of plain values per finished epoch.
    """

    losses: list[float] = field(default_factory=list)
    scales: list[tuple[int, float, int]] = field(default_factory=list)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    _unread: list[Any] = field(default_factory=list)

    def add_loss(self, loss: Any) -> None:
        """Add a native scalar without reading it."""
        self._unread.append(loss)

    @property
    def batches(self) -> int:
        """Batches trained so far."""
        return len(self.losses) + len(self._unread)

    def read_losses(self, to_numpy: Callable[[Any], Any], mean: Callable[[Any], Any] = lambda own: own) -> None:
        """Read the losses added since the last call.

        Args:
            to_numpy: reads a native scalar.
            mean: returns the mean of an array over the processes, where there are several.
        """
        own = np.array([float(np.reshape(to_numpy(loss), ())) for loss in self._unread], np.float64)
        self.losses += mean(own).tolist()
        self._unread.clear()

    def to_arrays(self) -> dict[str, Any]:
        """Return the curves as arrays for a checkpoint."""
        scales = np.array(self.scales, np.float64).reshape(-1, 3)
        return {"history/losses": np.array(self.losses, np.float64), "history/scales": scales}

    @classmethod
    def from_saved(cls, arrays: dict[str, Any], epochs: list[dict[str, Any]]) -> History:
        """Return the history from a checkpoint."""
        scales = [(int(step), float(scale), int(skipped)) for step, scale, skipped in arrays["history/scales"]]
        return cls(arrays["history/losses"].tolist(), scales, list(epochs))

    def write(self, path: Path, about: dict[str, Any]) -> None:
        """Write the log atomically: ``{**about, "epochs": …, "losses": …, "scales": …}``; null if non-finite."""
        losses = [loss if math.isfinite(loss) else None for loss in self.losses]
        log = {**about, "epochs": self.epochs, "losses": losses, "scales": self.scales}
        write_whole(path, json.dumps(log, indent=1))
