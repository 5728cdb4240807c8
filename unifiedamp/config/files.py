"""Configuration files as plain values: what is read of a file before anybody asks what its settings mean.

Files may come from elsewhere. Their size and depth are bounded, so that none takes long to read, and a setting that is
there twice is an error, not a choice.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from ..errors import ConfigError

LARGEST = 2**20
"""Bytes of a configuration file."""
DEEPEST = 16
"""Parts of a dotted TOML key. ``tomllib`` takes a time that grows with the square of it."""

_STRINGS = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'')
_BETWEEN_KEYS = re.compile(r"[=,\[\]{}]+")


def read_file(path: Path) -> dict[str, Any]:
    """Read a TOML (``.toml``) or JSON (``.json``) file into a mapping.

    Raises:
        ConfigError: it is missing, too large, has another ending, or cannot be parsed.
    """
    readers = {".toml": _toml, ".json": _json}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise ConfigError(f"configuration {path}: write it as .toml or .json")
    try:
        table = reader(_text(path))
    except OSError as error:
        raise ConfigError(f"configuration {path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"configuration {path} is not valid {path.suffix[1:].upper()}: {error}") from error
    if not isinstance(table, dict):
        raise ConfigError(f"configuration {path} must hold a table of settings, not {type(table).__name__}")
    return table


def _text(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"it is larger than {LARGEST // 2**20} MiB")
    return content.decode()


def _toml(text: str) -> Any:
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > DEEPEST and _depth(line) > DEEPEST:
            raise ValueError(f"a key of more than {DEEPEST} parts (line {number})")
    return tomllib.loads(text)


def _depth(line: str) -> int:
    """Return how many dots the longest of a line's keys has at most."""
    keys = _STRINGS.sub("s", line).partition("#")[0]
    return max(part.count(".") for part in _BETWEEN_KEYS.split(keys))


def _json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_table, parse_constant=_refuse)


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{twice!r} is there twice")
    return table


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON")
