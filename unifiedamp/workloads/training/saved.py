"""The schema of a run's checkpoints, validated as a whole before use."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ...checkpoint.sealed_file import Checkpoint
from ...errors import CheckpointError
from ...loss_scale import FLOAT32_MAX
from .history import History

SHARES = ("accuracy", "precision", "recall", "f1")
"""Scores from 0 to 1, shown in percent."""
FORMAT = 2
"""Format 1 is that of the recipe, before workloads."""
Count = Annotated[int, Field(ge=0, le=2**52)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=100_000)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


def check_shares(scores: dict[str, float | None]) -> dict[str, float | None]:
    """Return scores by name.

    Raises:
        ValueError: one whose name says that it is a share is not from 0 to 1.
    """
    for name in SHARES:
        value = scores.get(name)
        if value is not None and not 0 <= value <= 1:
            raise ValueError(f"{name} must be from 0 to 1, got {value:g}")
    return scores


class EpochRow(_Strict):
    """The history row of an epoch."""

    epoch: Count
    loss: Finite | None
    scores: Annotated[dict[Text, Finite | None], AfterValidator(check_shares)]
    loss_scale: Annotated[float, Field(gt=0, le=FLOAT32_MAX)]
    applied_steps: Count
    skipped_steps: Count
    samples_per_second: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    compile_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    backend: Text
    policy: Text


class Held(_Strict):
    """Under whose names arrays are: "" for those that the workload exports, else a backend's."""

    weights: Text
    optimizer: Text


class Meta(_Strict):
    """The metadata; the session validates its own state, ``amp``."""

    run: Literal[2]
    workload: Text
    epoch: Count
    batch: Count
    finished: bool
    window: Annotated[int, Field(ge=1, le=2**52)]
    settings: dict[str, Any]
    held: Held
    epochs: list[EpochRow]
    amp: dict[str, Any]


@dataclass(frozen=True)
class Saved:
    """A validated checkpoint.

    Attributes:
        meta: the metadata.
        weights, optimizer: name → array.
        history: the history so far.
    """

    meta: Meta
    weights: dict[str, Any]
    optimizer: dict[str, Any]
    history: History


def read_saved(saved: Checkpoint, path: object) -> Saved:
    """Validate a checkpoint and return its contents.

    Raises:
        CheckpointError: it is not of a run, of an earlier format, or contains an invalid value.
    """
    if "recipe" in saved.meta:
        raise CheckpointError(
            f"{path} is of format 1, written by an earlier unifiedamp: finish the run with that version, or start anew"
        )
    if saved.meta.get("run") != FORMAT or isinstance(saved.meta["run"], bool):
        raise CheckpointError(f"{path} was not written by `unifiedamp train`, or by a newer version")
    meta = _meta(saved.meta, path)
    history = _history(saved, meta, path)
    weights, optimizer = (_under(prefix, saved.arrays, path) for prefix in ("weights/", "optimizer/"))
    return Saved(meta, weights, optimizer, history)


def _meta(raw: Mapping[str, Any], path: object) -> Meta:
    try:
        return Meta.model_validate(dict(raw))
    except ValidationError as error:
        worst = max(error.errors(include_url=False), key=lambda one: len(one["loc"]))
        where = ".".join(str(part)[:80] for part in worst["loc"])
        raise _altered(path, f"{where}: {worst['msg']} (got {reprlib.repr(worst['input'])})") from None


def _history(saved: Checkpoint, meta: Meta, path: object) -> History:
    losses, scales = (saved.arrays.get(f"history/{name}") for name in ("losses", "scales"))
    if losses is None or losses.ndim != 1 or losses.dtype.kind != "f":
        raise _altered(path, "history/losses is not a row of numbers")
    if scales is None or scales.ndim != 2 or scales.shape[1] != 3 or scales.dtype.kind != "f":
        raise _altered(path, "history/scales is not a table of three columns of numbers")
    # Columns: step, loss scale after it, skipped steps so far.
    if not (np.isfinite(scales).all() and (scales >= 0).all() and (scales[:, (0, 2)] % 1 == 0).all()):
        raise _altered(path, "history/scales holds numbers that are no steps and scales")
    if len(meta.epochs) != meta.epoch or any(row.epoch != place for place, row in enumerate(meta.epochs)):
        raise _altered(path, f"it stands in epoch {meta.epoch}, but its rows are not of the epochs before")
    fewest = meta.epoch + meta.batch
    if len(losses) < fewest or (not meta.epoch and len(losses) != meta.batch):
        raise _altered(path, f"it stands at batch {meta.batch} of epoch {meta.epoch}, but holds {len(losses)} losses")
    return History.from_saved(saved.arrays, saved.meta["epochs"])


def _under(prefix: str, arrays: Mapping[str, Any], path: object) -> dict[str, Any]:
    found = {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
    for name, value in found.items():
        if value.dtype.kind not in "fiu":
            raise _altered(path, f"{prefix}{name} holds no numbers but {value.dtype}")
    return found


def _altered(path: object, what: str) -> CheckpointError:
    return CheckpointError(f"{path} was altered, or not written by `unifiedamp train`: {what}; nothing was loaded")
