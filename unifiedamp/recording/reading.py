"""Reading a recording back: whole lines count, a line cut off by a kill is left out and told."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .counts import EMPTY, Distribution

FORMAT, VERSION = "unifiedamp-recording", 1


@dataclass
class Recording:
    """The records of one file, in its order; of a run that was resumed, those of all its parts.

    Attributes:
        headers: one per part.
        steps: recorded steps.
        skips: skipped steps that were not recorded themselves.
        damaged: lines that could not be read.
    """

    headers: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    skips: list[dict[str, Any]] = field(default_factory=list)
    damaged: int = 0

    @property
    def header(self) -> dict[str, Any]:
        """The last part's header."""
        return self.headers[-1]

    @property
    def gradients(self) -> list[str]:
        """Names of all gradients, in the order in which they were first seen."""
        return list(dict.fromkeys(name for step in self.steps for name in step["gradients"]))

    def total(self, name: str, form: str) -> Distribution:
        """Return one gradient's values over all recorded steps, ``form`` being "scaled" or "true"."""
        total = EMPTY
        for step in self.steps:
            if name in step["gradients"]:
                total = total.plus(Distribution.from_json(step["gradients"][name][form]))
        return total

    def bad_steps(self) -> list[dict[str, Any]]:
        """Return the records of steps with inf or nan, recorded or not, in order."""
        found = [*self.skips, *(step for step in self.steps if step["non_finite"])]
        return sorted(found, key=lambda record: int(record["step"]))


def read_recording(path: Path) -> Recording:
    """Read a file of JSON lines.

    Raises:
        ConfigError: it is not there, is no recording, or comes from a newer version.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}; record one by amp.record('run.jsonl') or unifiedamp train --record run.jsonl"
        ) from error
    found = collect(text.splitlines())
    if not found.headers:
        raise ConfigError(f"{path} is no recording: it has no header line; give a file that amp.record wrote")
    newest = max(int(header["version"]) for header in found.headers)
    if newest > VERSION:
        raise ConfigError(f"{path} was written by a newer unifiedamp (format {newest}, known: {VERSION}); update it")
    return found


def collect(lines: Iterable[str]) -> Recording:
    """Sort lines by their kind."""
    found = Recording()
    for line in filter(str.strip, lines):
        try:
            record = json.loads(line)
            kind = record["kind"]
        except (ValueError, KeyError, TypeError):
            found.damaged += 1
            continue
        if kind == "header" and record.get("format") == FORMAT:
            found.headers.append(record)
        elif kind == "step":
            found.steps.append(record)
        elif kind == "skip":
            found.skips.append(record)
    return found
