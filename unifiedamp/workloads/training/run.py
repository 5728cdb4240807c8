"""A run that can be stopped at any time and resumed, also by another framework where the workload exports its weights.

The whole state is in one checkpoint, replaced atomically: weights and optimizer, the session's state, the position in
the data, the history. Log and plot are generated from the history.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...backend import Ranks
from ...checkpoint.sealed_file import load_checkpoint, save_checkpoint
from ...errors import AmpError, CheckpointError, ConfigError, StateWarning
from ...output.files import remove_neighbours
from ...session import Amp
from ..configuration import Settings
from ..definition.loading import Loaded
from .batches import window_count, windows
from .history import History
from .restarts import remove_mark
from .saved import FORMAT, Meta, Saved, read_saved
from .state import State

CHECKPOINT = "checkpoint.npz"


@dataclass
class Run:
    """The state of a training run.

    Attributes:
        settings: the configuration.
        workload: what is trained.
        amp: the session.
        model, optimizers: the prepared model and optimizers.
        wrapped: the model as the step calls it: that of several processes is wrapped.
        ranks: the processes that train it together.
        saved: called with the run on every process, after each checkpoint.
        epoch, batch: the next batch, both from 0.
        resumed_at: the epoch and batch at which a checkpoint was resumed; None where the run was started.
        history: the history so far.
    """

    settings: Settings
    workload: Loaded
    amp: Amp
    model: Any
    optimizers: list[Any]
    wrapped: Any
    ranks: Ranks = field(default_factory=Ranks)
    saved: Callable[[Run], None] | None = None
    epoch: int = 0
    batch: int = 0
    resumed_at: tuple[int, int] | None = None
    history: History = field(default_factory=History)
    _windows: Iterator[list[Any]] | None = None

    @property
    def state(self) -> State:
        """What a checkpoint holds of model and optimizers."""
        return State(self.amp, self.workload, self.model, self.optimizers)

    @property
    def window(self) -> int:
        """Batches per optimizer step."""
        return int(self.settings.amp["accumulate_steps"])

    @property
    def steps(self) -> int:
        """Optimizer steps trained so far, skipped ones included."""
        return self.history.batches // self.window

    @property
    def out_of_steps(self) -> bool:
        """Whether the run has made all the steps that ``train.steps`` allows."""
        most = self.settings.train.steps
        return most is not None and self.steps >= most

    @property
    def finished(self) -> bool:
        """Whether nothing is left to train."""
        return self.epoch >= self.settings.train.epochs or self.out_of_steps

    def windows(self) -> Iterator[list[Any]]:
        """Return the rest of the epoch, in windows of one optimizer step."""
        found, self._windows = self._windows, None
        return windows(self.workload, self.epoch, self.window, self.batch) if found is None else found

    def window_count(self) -> int | None:
        """Return the number of windows of the epoch; None where its batches have no length."""
        return window_count(self.workload, self.epoch, self.window)

    def count(self, loss: Any) -> None:
        """Count a batch; log the loss scale and save a checkpoint at their intervals."""
        self.history.add_loss(loss)
        self.batch += 1
        if self.batch % self.window:
            return
        train = self.settings.train
        if self.steps % train.log_every == 0:
            self.history.scales.append((self.steps, self.amp.loss_scale, self.amp.skipped_steps))
        if self.steps % train.checkpoint_every == 0:
            self.save()

    def read_losses(self) -> None:
        """Read the losses of all batches so far."""
        self.history.read_losses(self.amp.to_numpy, self.ranks.mean)

    def row(self, scores: Mapping[str, float], samples_per_second: float, compile_seconds: float) -> dict[str, Any]:
        """Return the history's row of the present epoch.

        Args:
            scores: what the workload's evaluation returned.
            samples_per_second: training speed since the epoch was started or resumed, without ``compile_seconds``.
            compile_seconds: what the first calls of the step took beyond usual ones.
        """
        self.read_losses()
        loss = float(np.mean(self.history.losses[-self.batch :])) if self.batch else math.nan
        state = self.amp.state_dict()
        return {
            "epoch": self.epoch,
            "loss": loss if math.isfinite(loss) else None,
            "scores": {name: score if math.isfinite(score) else None for name, score in scores.items()},
            "loss_scale": state["state"]["scale"],
            "applied_steps": state["state"]["applied_steps"],
            "skipped_steps": state["state"]["skipped_steps"],
            "samples_per_second": samples_per_second,
            "compile_seconds": compile_seconds,
            "backend": state["backend"],
            "policy": state["policy"],
        }

    def end_epoch(self, row: dict[str, Any]) -> None:
        """Add the epoch's row and start the next epoch."""
        self.history.epochs.append(row)
        self.epoch, self.batch = self.epoch + 1, 0
        self.save()

    def save(self) -> None:
        """Write the checkpoint, then the log; of several processes, the first one does.

        All of them read the weights: what is sharded over them is gathered.
        """
        self.read_losses()
        state = self.state
        arrays = {f"weights/{name}": value for name, value in state.weights().items()}
        arrays |= {f"optimizer/{name}": value for name, value in state.optimizer().items()}
        if not self.ranks.rank:
            self._write(arrays, state.held)
        if self.saved is not None:
            self.saved(self)

    def _write(self, arrays: dict[str, Any], held: Mapping[str, str]) -> None:
        meta = {"run": FORMAT, "workload": self.workload.name, "epoch": self.epoch, "batch": self.batch}
        meta |= {"finished": self.finished, "window": self.window, "settings": self.workload.settings}
        meta |= {"held": held, "epochs": self.history.epochs}
        save_checkpoint(self.checkpoint_path, meta, arrays | self.history.to_arrays(), self.amp)
        remove_mark(self.checkpoint_path)
        about = {"workload": self.workload.name, "settings": self.workload.settings}
        about |= {"train": self.settings.train.model_dump(), "backend": self.amp.backend.name}
        self.history.write(self.settings.out / "log.json", {**about, "policy": str(self.amp.policy)})

    @property
    def checkpoint_path(self) -> Path:
        """Path of the run's checkpoint."""
        return self.settings.out / CHECKPOINT

    def begin(self, resume: bool, restart_scale: bool) -> None:
        """Resume the run of the checkpoint, or start a new one.

        Args:
            resume, restart_scale: see ``loop.train``.

        Raises:
            ConfigError: there is no checkpoint to resume, or an unfinished run would be overwritten.
            CheckpointError: the checkpoint is damaged, from another run, or not the one that rank 0 has read.
        """
        if not self.ranks.rank:
            remove_neighbours(self.checkpoint_path)
        self._check_exports()
        saved = self._read(resume)
        if saved is not None:
            self._restore(saved, restart_scale)
        elif self.ranks.size > 1 or self.saved is not None:
            self.save()  # processes that are started anew go on from this run, not from the one before in its folder

    def _read(self, resume: bool) -> Saved | None:
        """Return the checkpoint to go on from; None begins a new run.

        All processes have read it before one goes on: the first one writes the next over it.
        """
        found: Saved | None = None
        error: AmpError | None = None
        try:
            if resume:
                check_resumable(self.settings)
                found = read_saved(load_checkpoint(self.checkpoint_path), self.checkpoint_path)
            else:
                self._check_overwrites()
        except AmpError as raised:
            error = raised  # after the others have been told
        here = f"it resumes epoch {found.meta.epoch}, batch {found.meta.batch}" if found else "it begins a new run"
        here = here if error is None else "it cannot begin"
        rank = self.ranks.differing(here)
        if error is not None:
            raise error
        if rank is not None:
            raise CheckpointError(
                f"{self.checkpoint_path} is not the same file on rank {rank} and on rank 0, or only one of them is to "
                f"resume (here {here}); all processes must see one folder: name it with --out"
            )
        return found

    def _check_overwrites(self) -> None:
        if not self.checkpoint_path.exists():
            return
        meta = load_checkpoint(self.checkpoint_path).meta
        epoch, batch = meta.get("epoch"), meta.get("batch")
        if meta.get("finished") is not True and (epoch, batch) != (0, 0):
            raise ConfigError(
                f"{self.settings.out} holds an unfinished run (epoch {epoch!r:.20}, batch {batch!r:.20}): pass "
                "--resume to go on with it, or another --out, or delete it"
            )

    def _check_exports(self) -> None:
        """Read once what checkpoints will hold, so that what cannot be read is said before anything is trained."""
        state = self.state
        state.weights()
        state.optimizer()

    def _restore(self, saved: Saved, restart_scale: bool) -> None:
        """Load a checkpoint; everything is validated before anything changes."""
        self._check_same(saved.meta)
        state = self.state
        state.check(saved.meta.held.model_dump(), saved.weights, saved.optimizer)
        place = windows(self.workload, saved.meta.epoch, self.window, saved.meta.batch)
        rest = _started(place) if saved.meta.batch else place
        self.amp.load_state_dict(saved.meta.amp, restart_scale=restart_scale)
        state.set(saved.weights, saved.optimizer)
        with warnings.catch_warnings():  # said above
            warnings.simplefilter("ignore", StateWarning)
            # Once more: a backend may count steps by its optimizer's own count, which has just been set.
            self.amp.load_state_dict(saved.meta.amp, restart_scale=restart_scale)
        if not state.keeps_optimizer:
            warnings.warn(_no_optimizer(self.workload.name, self.amp.backend.name), StateWarning, stacklevel=2)
        self.history, self.epoch, self.batch = saved.history, saved.meta.epoch, saved.meta.batch
        self.resumed_at = self.epoch, self.batch
        self._windows = rest

    def _check_same(self, meta: Meta) -> None:
        now = self.workload.settings
        for key in sorted({*meta.settings, *now} - self.workload.may_change):
            before, after = meta.settings.get(key), now.get(key)
            if key not in meta.settings or key not in now or json.dumps(before) != json.dumps(after):
                raise CheckpointError(
                    f"{self.checkpoint_path} was trained with {key} = {before!r:.80}, now {key} = {after!r:.80}: only "
                    "the same run can be resumed (a workload lists in may_change what a resumed run may change)"
                )
        if meta.batch % self.window:
            raise CheckpointError(
                f"{self.checkpoint_path} stops after batch {meta.batch} of its epoch, inside a window of "
                f"accumulate_steps = {self.window} batches: resume it with accumulate_steps = {meta.window}"
            )


def _started(rest: Iterator[list[Any]]) -> Iterator[list[Any]]:
    """Return an iterator whose first item is read already, so that what it raises is raised now."""
    first = list(_first(rest))

    def again() -> Iterator[list[Any]]:
        yield from first
        yield from rest

    return again()


def _first(rest: Iterator[list[Any]]) -> Iterator[list[Any]]:
    for item in rest:
        yield item
        return


def _no_optimizer(workload: str, backend: str) -> str:
    return (
        f"backend {backend!r} saves no state of this optimizer and {workload} has no export_optimizer: the optimizer "
        "starts anew (its momentum is zero)"
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
