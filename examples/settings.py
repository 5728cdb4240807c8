"""The recipe's configuration: a table ``[amp]`` for the session and a table ``[train]`` for everything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from unifiedamp import ConfigError
from unifiedamp.config.arguments import Arguments, read_arguments, validate
from unifiedamp.config.files import read_file
from unifiedamp.errors import nearest

TABLES = ("amp", "train", "evidence")
"""``[evidence]`` holds the measurements of ``unifiedamp tune``, for information only."""


COUNT = 2**31 - 1
"""The largest count or seed that every framework accepts."""


class TrainTable(BaseModel):
    """``[train]``. Steps are optimizer steps: with ``amp.accumulate_steps``, one step takes several batches."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: Literal["conv", "mlp", "resnet50"] = "conv"
    width: int | None = Field(None, ge=1, le=1024)  # resnet50 only: channels inside the first bottlenecks; None is 64
    data: Literal["digits", "fashion-mnist"] = "digits"
    data_folder: str | None = None
    samples: int | None = Field(None, ge=1, le=COUNT)  # train on the first N images; None is all
    epochs: int = Field(10, ge=1, le=COUNT)
    batch_size: int = Field(64, ge=1, le=COUNT)
    learning_rate: float = Field(0.05, gt=0, le=1e6)
    momentum: float = Field(0.9, ge=0, lt=1)
    clip_norm: float | None = Field(None, gt=0, le=1e30)
    seed: int = Field(0, ge=0, le=COUNT)
    compile: bool = True
    checkpoint_every: int = Field(200, ge=1, le=COUNT)
    log_every: int = Field(20, ge=1, le=COUNT)

    @model_validator(mode="after")
    def _width_is_of_resnet50(self) -> TrainTable:
        if self.width is not None and self.model != "resnet50":
            raise ValueError(f"width is a setting of model 'resnet50'; {self.model!r} has none")
        return self

    @property
    def size(self) -> dict[str, int]:
        """Further arguments of ``make_model``."""
        return {} if self.width is None else {"width": self.width}


@dataclass(frozen=True)
class Settings:
    """Settings of a run.

    Attributes:
        name: the configuration's file name without its suffix.
        amp: the arguments of ``Amp.from_config``.
        train: the ``[train]`` table.
        out: directory for checkpoint, log and plot.
    """

    name: str
    amp: Arguments
    train: TrainTable
    out: Path


def read_settings(
    path: Path, out: Path | None = None, *, amp: Mapping[str, Any] | None = None, train: Mapping[str, Any] | None = None
) -> Settings:
    """Read a configuration file; values of ``amp`` and ``train`` that are not None override it.

    The environment variables of ``Amp.from_config`` override the file and are overridden by ``amp``.

    Args:
        path: a ``.toml`` or ``.json`` file.
        out: the run's directory; None is ``runs/<name of the file>``.
        amp, train: settings from the command line.

    Raises:
        ConfigError: the file is unreadable, or has an unknown key or invalid value; the message names it.
    """
    tables = read_file(path)
    for key in tables:
        if key not in TABLES:
            raise ConfigError(f"{path}: unknown table {key!r}{nearest(key, TABLES)} (known: {', '.join(TABLES)})")
    session = read_arguments({"amp": _merged(tables.get("amp", {}), None, path)}, amp)
    table = _train_table(tables.get("train", {}), train, path)
    return Settings(path.stem, session, table, out or Path("runs") / path.stem)


def _train_table(table: Any, changes: Mapping[str, Any] | None, path: Path) -> Any:
    """Return ``[train]`` with the changes; errors name the file or the options, whichever is at fault.

    Raises:
        ConfigError: an unknown key or invalid value.
    """
    where = f"{path}, [train]"
    merged = _merged(table, changes, path)
    try:
        return validate(TrainTable, merged, where)
    except ConfigError:
        validate(TrainTable, _merged(table, None, path), where)
        return validate(TrainTable, merged, "the options beside the configuration")


def _merged(table: Any, changes: Mapping[str, Any] | None, path: Path) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{path}: [amp] and [train] must be tables, got {table!r}")
    return {**table, **{key: value for key, value in (changes or {}).items() if value is not None}}
