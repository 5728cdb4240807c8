"""A run that can be stopped at any time and resumed, also by another framework.

The whole state is in one checkpoint, replaced atomically: weights and momentum under neutral names, the session's
state, the position in the data, the history. Log and plot are generated from the history.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from unifiedamp import Amp, CheckpointError, ConfigError
from unifiedamp.checkpoint.sealed_file import load_checkpoint, save_checkpoint
from unifiedamp.output.files import remove_neighbours

from .history import History
from .models.neutral import check_fits
from .saved import Meta, Saved, read_saved
from .settings import Settings

CHECKPOINT = "checkpoint.npz"
SAME = ("model", "width", "data", "samples", "batch_size", "seed")
"""Settings that a resumed run must not change: they determine the weights' shapes and the batches."""


@dataclass
class Run:
    """The state of a training run.

    Attributes:
        settings: the configuration.
        amp, kit: the session, and its framework's module of ``examples/models``.
        model, optimizer: the prepared model and optimizer.
        epoch, batch: the next batch, both from 0.
        history: the history so far.
    """

    settings: Settings
    amp: Amp
    kit: ModuleType
    model: Any
    optimizer: Any
    epoch: int = 0
    batch: int = 0
    history: History = field(default_factory=History)

    def __post_init__(self) -> None:
        if self._masters and "true" not in inspect.signature(self.kit.export_weights).parameters:
            raise ConfigError(
                f"amp.master_weights: the recipe's checkpoints hold no master weights for {self.amp.backend.name!r} "
                "yet; use the backend 'torch' or 'tensorflow', a mixed policy, or a loop of your own with "
                "amp.master_weights(model)"
            )

    @property
    def window(self) -> int:
        """Batches per optimizer step."""
        return int(self.settings.amp["accumulate_steps"])

    @property
    def between_windows(self) -> bool:
        """Whether no accumulation window is open; a run can stop only then."""
        return self.batch % self.window == 0

    def count(self, loss: Any) -> None:
        """Count a batch; log the loss scale and save a checkpoint at their intervals."""
        self.history.add_loss(loss)
        self.batch += 1
        if not self.between_windows:
            return
        train = self.settings.train
        step = self.history.batches // self.window
        if step % train.log_every == 0:
            self.history.scales.append((step, self.amp.loss_scale, self.amp.skipped_steps))
        if step % train.checkpoint_every == 0:
            self.save()

    def read_losses(self) -> None:
        """Read the losses of all batches so far."""
        self.history.read_losses(self.amp.to_numpy)

    def end_epoch(self, accuracy: float, samples_per_second: float, compile_seconds: float = 0.0) -> None:
        """Add the epoch's row and start the next epoch.

        Args:
            accuracy: accuracy on the test images, 0 to 1.
            samples_per_second: training speed since the epoch was started or resumed, without ``compile_seconds``.
            compile_seconds: what the first calls of the step took beyond usual ones.
        """
        self.read_losses()
        loss = float(np.mean(self.history.losses[-self.batch :]))
        state = self.amp.state_dict()
        row = {
            "epoch": self.epoch,
            "loss": loss if math.isfinite(loss) else None,
            "accuracy": accuracy,
            "loss_scale": state["state"]["scale"],
            "applied_steps": state["state"]["applied_steps"],
            "skipped_steps": state["state"]["skipped_steps"],
            "samples_per_second": samples_per_second,
            "compile_seconds": compile_seconds,
            "backend": state["backend"],
            "policy": state["policy"],
        }
        self.history.epochs.append(row)
        self.epoch, self.batch = self.epoch + 1, 0
        self.save()

    def save(self) -> None:
        """Write the checkpoint, then the log."""
        self.read_losses()
        train = self.settings.train
        finished = self.epoch >= train.epochs
        meta = {"recipe": 1, "epoch": self.epoch, "batch": self.batch, "finished": finished, "window": self.window}
        meta |= {"same": {key: getattr(train, key) for key in SAME}, "epochs": self.history.epochs}
        arrays = {f"weights/{name}": value for name, value in self.weights().items()}
        momentum = self.kit.export_momentum(self.model, self.optimizer)
        arrays |= {f"momentum/{name}": value for name, value in momentum.items()}
        arrays |= self.history.to_arrays()
        save_checkpoint(self.checkpoint_path, meta, arrays, self.amp)
        about = {"train": train.model_dump(), "backend": self.amp.backend.name, "policy": str(self.amp.policy)}
        self.history.write(self.settings.out / "log.json", about)

    def weights(self) -> dict[str, Any]:
        """Return the float32 weights under neutral names; master weights where they exist."""
        if not self._masters:
            return self.kit.export_weights(self.model)  # type: ignore[no-any-return]
        return self.kit.export_weights(self.model, self.amp.master_weights(self.model))  # type: ignore[no-any-return]

    def _set_weights(self, weights: dict[str, Any]) -> None:
        if not self._masters:
            self.kit.import_weights(self.model, weights)
            return
        true = self.amp.master_weights(self.model)
        self.kit.import_weights(self.model, weights, true)
        self.amp.load_master_weights(self.model, true)

    @property
    def _masters(self) -> bool:
        return bool(self.settings.amp.get("master_weights"))

    @property
    def checkpoint_path(self) -> Path:
        """Path of the run's checkpoint."""
        return self.settings.out / CHECKPOINT

    def begin(self, batches: int, resume: bool, restart_scale: bool) -> None:
        """Resume the run of the checkpoint, or start a new one.

        Args:
            batches: batches per epoch.
            resume, restart_scale: see ``recipe.train``.

        Raises:
            ConfigError: there is no checkpoint to resume, or an unfinished run would be overwritten.
            CheckpointError: the checkpoint is damaged or from another run.
        """
        remove_neighbours(self.checkpoint_path)
        if resume:
            check_resumable(self.settings)
        elif not self.checkpoint_path.exists():
            return
        saved = load_checkpoint(self.checkpoint_path)
        if resume:
            self._restore(read_saved(saved, self.checkpoint_path), batches, restart_scale)
        elif saved.meta.get("finished") is not True:
            raise ConfigError(
                f"{self.settings.out} holds an unfinished run (epoch {saved.meta.get('epoch')!r:.20}, batch "
                f"{saved.meta.get('batch')!r:.20}): pass --resume to go on with it, or another --out, or delete it"
            )

    def _restore(self, saved: Saved, batches: int, restart_scale: bool) -> None:
        """Load a checkpoint; everything is validated before anything changes."""
        self._check_same(saved.meta, batches)
        check_fits(saved.weights, {name: value.shape for name, value in self.weights().items()})
        momentum = self.kit.export_momentum(self.model, self.optimizer)
        check_fits(saved.momentum, {name: value.shape for name, value in momentum.items()})
        self.amp.load_state_dict(saved.meta.amp, restart_scale=restart_scale)
        self._set_weights(saved.weights)
        self.kit.import_momentum(self.model, self.optimizer, saved.momentum)
        self.history, self.epoch, self.batch = saved.history, saved.meta.epoch, saved.meta.batch

    def _check_same(self, meta: Meta, batches: int) -> None:
        for key in SAME:
            before, now = getattr(meta.same, key), getattr(self.settings.train, key)
            if before != now:
                raise CheckpointError(
                    f"{self.checkpoint_path} was trained with {key} = {before!r}, "
                    f"the configuration says {now!r}: only the same run can be resumed"
                )
        if meta.batch % self.window:
            raise CheckpointError(
                f"{self.checkpoint_path} stops after batch {meta.batch} of its epoch, inside a window of "
                f"accumulate_steps = {self.window} batches: resume it with accumulate_steps = {meta.window}"
            )
        if meta.batch > batches:
            raise CheckpointError(
                f"{self.checkpoint_path} stops after batch {meta.batch} of its epoch, which has {batches}"
            )


def check_resumable(settings: Settings) -> None:
    """Check that there is a checkpoint to resume.

    Raises:
        ConfigError: ``settings.out`` holds no checkpoint.
    """
    if not (settings.out / CHECKPOINT).exists():
        raise ConfigError(
            f"--resume: {settings.out} holds no checkpoint ({CHECKPOINT}); name the run's folder with --out, or leave "
            "--resume out to start there"
        )
