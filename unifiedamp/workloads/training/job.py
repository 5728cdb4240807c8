"""A run as a command asks for it, in plain values that another process can be given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...backend import Launch
from ...recording import TensorBoard
from ..configuration import Settings
from .display import Display
from .loop import Saved, train
from .run import Run


@dataclass(frozen=True)
class Job:
    """The arguments of ``train``.

    Attributes:
        settings, resume, restart_scale, record_every: as there.
        record: the file to record to; None records to none.
        tensorboard: the folder to record to for TensorBoard; likewise.
    """

    settings: Settings
    resume: bool = False
    restart_scale: bool = False
    record: Path | None = None
    tensorboard: Path | None = None
    record_every: int = 100

    def train(
        self, display: Display, *, resume: bool = False, launch: Launch | None = None, saved: Saved | None = None
    ) -> Run:
        """Train; see ``train``.

        Args:
            display: shows the progress.
            resume: go on from the checkpoint, whether the command asks for it or not.
            launch, saved: as there.
        """
        targets: list[Any] = [self.record] if self.record else []
        targets += [TensorBoard(self.tensorboard)] if self.tensorboard else []
        return train(
            self.settings, display, resume=resume or self.resume, restart_scale=self.restart_scale, record=targets,
            record_every=self.record_every, launch=launch, saved=saved,
        )  # fmt: skip
