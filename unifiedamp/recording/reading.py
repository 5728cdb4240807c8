"""Reading a recording back: whole lines count; a line cut off by a kill is left out and reported.

A file is checked wholly before anything is computed from it; its size, and that of each line, is bounded.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ..errors import ConfigError
from .counts import EMPTY, Distribution

FORMAT, VERSION = "unifiedamp-recording", 1
MAX_BYTES = 2**30
"""Of a file."""
MAX_LINE = 2**26
"""Bytes of a line: a record of 100,000 gradients."""
MAX_RECORDS = 100_000
MAX_NAMES = 100_000
"""Different gradients, and different layers, of all records together."""
NOTHING_HERE: dict[str, Any] = {
    "loss_was_finite": True,
    "first_activation": None,
    "first_gradient": None,
    "gradients": [],
}
"""What a rank knows of inf or nan that other ranks alone have seen."""
SHORTER = "record a part of the run, or less often (every=...)"


@dataclass
class Recording:
    """The records of one file, in its order; of a run that was resumed, those of all its parts.

    Attributes:
        headers: one per part.
        steps: recorded steps.
        skips: skipped steps that were not recorded themselves.
        numbers: what the loop logged.
        ranks: what all ranks recorded of a step, one record per step; empty for a process alone.
        damaged: lines that could not be read.
    """

    headers: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    skips: list[dict[str, Any]] = field(default_factory=list)
    numbers: list[dict[str, Any]] = field(default_factory=list)
    ranks: list[dict[str, Any]] = field(default_factory=list)
    damaged: int = 0

    @property
    def header(self) -> dict[str, Any]:
        """The last part's header."""
        return self.headers[-1]

    @functools.cached_property
    def gradients(self) -> list[str]:
        """Names of all gradients, in the order in which they were first seen."""
        return list(dict.fromkeys(name for step in self.steps for name in step["gradients"]))

    def total(self, name: str, form: str) -> Distribution:
        """Return one gradient's values over all recorded steps, ``form`` being "scaled" or "true"."""
        return self._totals[form].get(name, EMPTY)

    @functools.cached_property
    def _totals(self) -> dict[str, dict[str, Distribution]]:
        totals: dict[str, dict[str, Distribution]] = {"scaled": {}, "true": {}}
        for step in self.steps:
            for name, gradient in step["gradients"].items():
                for form, found in totals.items():
                    found[name] = found.get(name, EMPTY).plus(Distribution.from_json(gradient[form]))
        return totals

    def bad_steps(self) -> list[dict[str, Any]]:
        """Return the records of steps with inf or nan, recorded or not, in order."""
        found = [*self.skips, *(step for step in self.steps if step["non_finite"])]
        return sorted(found, key=lambda record: int(record["step"]))


def read_recording(path: Path) -> Recording:
    """Read a file of JSON lines.

    Raises:
        ConfigError: it is not there, is no recording, is too large, or comes from a newer version; or a record has a
            value that ``amp.record`` cannot have written. The message names the line and the field.
    """
    try:
        with path.open("rb") as file:
            return collect(_lines(file, path), path)
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}; record one by amp.record('run.jsonl') or unifiedamp train --record run.jsonl"
        ) from error


def collect(lines: Iterable[str], path: Path = Path("recording")) -> Recording:
    """Sort lines by their kind, and check each.

    Args:
        lines: of a file.
        path: its name, for messages.

    Raises:
        ConfigError: see :func:`read_recording`.
    """
    from .schema import KINDS, problem_with

    found = Recording()
    names: set[str] = set()
    kinds = {
        "header": found.headers, "step": found.steps, "skip": found.skips, "numbers": found.numbers,
        "ranks": found.ranks,
    }  # fmt: skip
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        record = _parsed(line, f"{path}, line {number}")
        kind = record.get("kind") if isinstance(record, dict) else None
        if not isinstance(kind, str) or kind not in KINDS:
            found.damaged += 1
            continue
        _check_version(record, path)
        problem = problem_with(record)
        if problem is not None:
            raise ConfigError(f"{path}, line {number}: {problem}: amp.record wrote no such {kind}; record again")
        kinds[kind].append(record)
        names.update(_names(record))
        _check_sizes(number, names, path)
    if not found.headers:
        raise ConfigError(f"{path} is no recording: it has no header line; give a file that amp.record wrote")
    join_ranks(found.steps, found.ranks)
    return found


def join_ranks(steps: Iterable[dict[str, Any]], ranks: Iterable[dict[str, Any]]) -> None:
    """Give each step what all ranks recorded of it, under ``"ranks"``; counts of shards are those of all ranks."""
    known = {record["step"]: record for record in ranks}
    for step in steps:
        merged = known.get(step["step"])
        if merged is None:
            continue
        step["ranks"] = merged
        step["gradients"] = {**step["gradients"], **merged.get("gradients", {})}
        if merged["first"] is not None:
            step["non_finite"] = step["non_finite"] or NOTHING_HERE


def _lines(file: IO[bytes], path: Path) -> Iterator[str]:
    left = MAX_BYTES
    while line := file.readline(MAX_LINE + 1):
        left -= len(line)
        if len(line) > MAX_LINE or left < 0:
            what, limit = ("a line", MAX_LINE) if len(line) > MAX_LINE else ("a file", MAX_BYTES)
            raise ConfigError(f"{path} is too large for a report: {what} may have {limit:,} bytes; {SHORTER}")
        yield line.decode("utf-8", errors="replace")


def _parsed(line: str, where: str) -> Any:
    """Return a line's record; None for one that is no JSON (cut off by a kill)."""
    try:
        return json.loads(line, object_pairs_hook=_once, parse_constant=_refused)
    except _TwiceError as error:
        raise ConfigError(f"{where}: the name {str(error)[:80]!r} stands twice in one object; record again") from None
    except RecursionError:
        raise ConfigError(f"{where}: nested too deeply for a record; record again") from None
    except ValueError:
        return None


class _TwiceError(Exception):
    """A key that one JSON object holds twice."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise _TwiceError(twice)
    return found


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _check_version(record: dict[str, Any], path: Path) -> None:
    if record["kind"] != "header":
        return
    if record.get("format") != FORMAT:
        raise ConfigError(f"{path} is no recording: its header names another format; give a file that amp.record wrote")
    version = record.get("version")
    if isinstance(version, int) and not isinstance(version, bool) and version > VERSION:
        raise ConfigError(f"{path} was written by a newer unifiedamp (format {version}, known: {VERSION}); update it")


def _names(record: dict[str, Any]) -> Iterator[str]:
    yield from record.get("gradients", ())
    yield from (row["layer"] for row in record.get("activations", ()))
    yield from (name for row in record.get("bad", ()) for name in row["gradients"])


def _check_sizes(number: int, names: set[str], path: Path) -> None:
    for count, limit, what in ((number, MAX_RECORDS, "records"), (len(names), MAX_NAMES, "names of layers")):
        if count > limit:
            raise ConfigError(f"{path} is too large for a report: more than {limit:,} {what}; {SHORTER}")
