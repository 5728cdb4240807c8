"""The configuration of a run: a workload and its settings, ``[amp]`` for the session, ``[train]`` for the loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ..config.arguments import Arguments, read_arguments, validate
from ..config.files import read_file
from ..errors import ConfigError, nearest, shown
from .definition.reference import Reference, is_reference, parse_reference

KEYS = ("workload", "settings", "amp", "train", "evidence")
"""Of a configuration file. ``[evidence]`` holds the measurements of ``unifiedamp tune``, for information only."""

COUNT = 2**31 - 1
"""The largest count that every framework accepts."""


class TrainTable(BaseModel):
    """``[train]``. Steps are optimizer steps: with ``amp.accumulate_steps``, one step takes several batches."""

    model_config = ConfigDict(extra="forbid", strict=True)
    epochs: int = Field(1, ge=1, le=COUNT)
    steps: int | None = Field(None, ge=1, le=COUNT)  # stop after this many in all, wherever in an epoch
    clip_norm: float | None = Field(None, gt=0, le=1e30)
    compile: bool = False
    checkpoint_every: int = Field(200, ge=1, le=COUNT)
    log_every: int = Field(20, ge=1, le=COUNT)


@dataclass(frozen=True)
class Settings:
    """The settings of a run.

    Attributes:
        name: the configuration's or the workload's file name, without its suffix.
        workload: the workload's file.
        amp: the arguments of ``Amp.from_config``.
        train: the ``[train]`` table.
        given: the workload's settings that differ from their defaults; values from a command line are text.
        out: directory for checkpoint, log and plot.
    """

    name: str
    workload: Reference
    amp: Arguments
    train: TrainTable
    given: Mapping[str, Any]
    out: Path


@dataclass(frozen=True)
class Source:
    """What a command line names: a workload, a configuration, or both.

    Attributes:
        workload: the workload's file.
        config: the configuration file; None without one.
        tables: what it holds.
    """

    workload: Reference
    config: Path | None
    tables: Mapping[str, Any]

    @property
    def file(self) -> Path:
        """The file that a run is named after."""
        return self.config or self.workload.path


def read_source(target: str, config: Path | None = None) -> Source:
    """Return what ``FILE.py[:NAME]``, with ``--config FILE`` or without, or a configuration file alone names.

    Raises:
        ConfigError: a file cannot be read, or names no workload.
    """
    if is_reference(target):
        tables = {} if config is None else _tables(config)
        return Source(parse_reference(target), config, tables)
    path = Path(target)
    if config is not None:
        raise ConfigError(f"{target} is a configuration file; beside --config, name a Python file")
    if path.suffix.lower() not in (".toml", ".json"):
        raise ConfigError(f"{target!r} is neither a Python file (FILE.py or FILE.py:NAME) nor a .toml or .json file")
    tables = _tables(path)
    if "workload" not in tables:
        raise ConfigError(
            f'{path} names no workload: add `workload = "my_model.py"`, or pass the Python file and --config {path}'
        )
    if not isinstance(tables["workload"], str):
        raise ConfigError(f"{path}: workload must be text, FILE.py or FILE.py:NAME, got {shown(tables['workload'])}")
    return Source(parse_reference(tables["workload"], path.parent), path, tables)


def _tables(path: Path) -> Mapping[str, Any]:
    tables = read_file(path)
    for key in tables:
        if key not in KEYS:
            raise ConfigError(f"{path}: unknown table {key!r}{nearest(key, KEYS)} (known: {', '.join(KEYS)})")
    return tables


def read_settings(
    source: Source, out: Path | None = None, *, amp: Mapping[str, Any] | None = None,
    train: Mapping[str, Any] | None = None, given: Mapping[str, Any] | None = None,
) -> Settings:  # fmt: skip
    """Return the settings of a run; values of ``amp`` and ``train`` that are not None override the configuration.

    The environment variables of ``Amp.from_config`` override the file and are overridden by ``amp``.

    Args:
        source: what the command line names.
        out: the run's directory; None is ``runs/<name of the file>``.
        amp, train: settings from the command line.
        given: settings of the workload from the command line.

    Raises:
        ConfigError: the file has an unknown key or an invalid value; the message names it.
    """
    tables, path = source.tables, source.file
    session = read_arguments({"amp": _merged(tables, "amp", None, path)}, amp)
    table = _train_table(tables, train, path)
    settings = _merged(tables, "settings", given, path)
    return Settings(path.stem, source.workload, session, table, settings, out or Path("runs") / path.stem)


def _train_table(tables: Mapping[str, Any], changes: Mapping[str, Any] | None, path: Path) -> Any:
    """Return ``[train]`` with the changes; errors name the file or the options, whichever is at fault.

    Raises:
        ConfigError: an unknown key or invalid value.
    """
    where = f"{path}, [train]"
    merged = _merged(tables, "train", changes, path)
    try:
        return validate(TrainTable, merged, where)
    except ConfigError:
        validate(TrainTable, _merged(tables, "train", None, path), where)
        return validate(TrainTable, merged, "the options beside the configuration")


def _merged(tables: Mapping[str, Any], name: str, changes: Mapping[str, Any] | None, path: Path) -> dict[str, Any]:
    table = tables.get(name, {})
    if not isinstance(table, Mapping):
        raise ConfigError(f"{path}: [{name}] must be a table, got {table!r}")
    return {**table, **{key: value for key, value in (changes or {}).items() if value is not None}}
