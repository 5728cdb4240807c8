"""The schema of the recipe's checkpoints, validated as a whole before use."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from unifiedamp import CheckpointError
from unifiedamp.checkpoint.sealed_file import Checkpoint
from unifiedamp.loss_scale import FLOAT32_MAX

from .history import History

Count = Annotated[int, Field(ge=0, le=2**52)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=100_000)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


class EpochRow(_Strict):
    """The history row of an epoch."""

    epoch: Count
    loss: Finite | None
    accuracy: Annotated[float, Field(ge=0, le=1)]
    loss_scale: Annotated[float, Field(gt=0, le=FLOAT32_MAX)]
    applied_steps: Count
    skipped_steps: Count
    samples_per_second: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    compile_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    backend: Text
    policy: Text


class Same(_Strict):
    """Settings that a resumed run must not change: they determine the weights' shapes and the batches.

    Older checkpoints have no ``samples`` or ``width``.
    """

    model: Text
    width: Count | None = None
    data: Text
    samples: Count | None = None
    batch_size: Count
    seed: Annotated[int, Field(ge=0)]


class Meta(_Strict):
    """The metadata; the session validates its own state, ``amp``."""

    recipe: Literal[1]
    epoch: Count
    batch: Count
    finished: bool
    window: Annotated[int, Field(ge=1, le=2**52)]
    same: Same
    epochs: list[EpochRow]
    amp: dict[str, Any]


@dataclass(frozen=True)
class Saved:
    """A validated checkpoint.

    Attributes:
        meta: the metadata.
        weights, momentum: neutral name → floating-point array.
        history: the history so far.
    """

    meta: Meta
    weights: dict[str, Any]
    momentum: dict[str, Any]
    history: History


def read_saved(saved: Checkpoint, path: object) -> Saved:
    """Validate a checkpoint and return its contents.

    Raises:
        CheckpointError: it is not from this recipe, or contains an invalid value.
    """
    if saved.meta.get("recipe") != 1:
        raise CheckpointError(f"{path} was not written by this recipe")
    meta = _meta(saved.meta, path)
    history = _history(saved, meta, path)
    weights, momentum = (_under(prefix, saved.arrays, path) for prefix in ("weights/", "momentum/"))
    return Saved(meta, weights, momentum, history)


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
        if value.dtype.kind != "f":
            raise _altered(path, f"{prefix}{name} holds no floating-point numbers but {value.dtype}")
    return found


def _altered(path: object, what: str) -> CheckpointError:
    return CheckpointError(f"{path} was altered, or not written by this recipe: {what}; nothing was loaded")
