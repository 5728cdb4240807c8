"""Where records go: a file of JSON lines, TensorBoard, or anything with ``write``."""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ..errors import AmpError, ConfigError
from .counts import Distribution
from .scalars import gradients, scalars

Record = Mapping[str, Any]


class Sink(Protocol):
    """Takes records, one mapping of plain JSON values each.

    One that also has a method ``fail(error)`` is told, before it is closed, which exception ended the recording.
    """

    def write(self, record: Record) -> None:
        """Take one record."""

    def close(self) -> None:
        """No more come."""


class JsonLines:
    """Appends one line per record to a file. What a killed run leaves is whole but for its last line at most.

    Args:
        path: the file; its folder is made. What is there stays: a resumed run goes on below it.

    Raises:
        ConfigError: it cannot be written to.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab", buffering=0)
            if self._cut_off():
                self._file.write(b"\n")
        except OSError as error:
            raise ConfigError(f"amp.record: {self.path} cannot be written to: {error.strerror}") from error

    def _cut_off(self) -> bool:
        if not self.path.stat().st_size:
            return False
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() != b"\n"

    def write(self, record: Record) -> None:
        """Append one line, in one write."""
        self._file.write(json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """Writes event files by tensorboardX: scalars per layer and the exponents as histograms.

    Args:
        folder: the log directory.

    Raises:
        AmpError: tensorboardX is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise AmpError(
                "writing for TensorBoard needs tensorboardX: pip install tensorboardX, or record to a "
                "file that ends in .jsonl"
            ) from error
        self._new_writer = functools.partial(SummaryWriter, os.fspath(folder))
        self._writer: Any = self._new_writer()

    def write(self, record: Record) -> None:
        """Write a record's numbers, or the header's text."""
        if self._writer is None:
            self._writer = self._new_writer()
        if record["kind"] == "header":
            self._writer.add_text("unifiedamp/header", "```\n" + json.dumps(record, indent=1) + "\n```")
        else:
            self._numbers(record, int(record["step"]))
            self._writer.flush()

    def _numbers(self, record: Record, step: int) -> None:
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, step)
        for name, form, counts in gradients(record):
            self._exponents(f"exponents_{form}/{name}", counts, step)

    def _exponents(self, name: str, counts: Distribution, step: int) -> None:
        if not counts.there:
            return
        low, high = min(counts.exponents), max(counts.exponents)
        limits = [float(exponent) + 0.5 for exponent in range(low, high + 1)]
        buckets = [counts.exponents.get(exponent, 0) for exponent in range(low, high + 1)]
        total = sum(exponent * count for exponent, count in counts.exponents.items())
        squares = sum(exponent**2 * count for exponent, count in counts.exponents.items())
        self._writer.add_histogram_raw(
            name, min=low, max=high, num=counts.there, sum=total, sum_squares=squares, bucket_limits=limits,
            bucket_counts=buckets, global_step=step,
        )  # fmt: skip

    def close(self) -> None:
        """Close the event file; a later record begins another. Idempotent."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


class _Called:
    """A function as a sink."""

    def __init__(self, function: Callable[[Record], Any]) -> None:
        self.write = function

    def close(self) -> None:
        """Nothing to close."""


def open_sink(target: Any) -> Sink:
    """Return the sink that ``target`` stands for: a path, an object with ``write``, or a function.

    Raises:
        ConfigError: it is none of these, or the file cannot be written to.
    """
    if isinstance(target, (str, os.PathLike)):
        return JsonLines(target)
    if callable(getattr(target, "write", None)):
        if not callable(getattr(target, "close", None)):
            return _Called(target.write)
        sink: Sink = target
        return sink
    if callable(target):
        return _Called(target)
    raise ConfigError(
        f"amp.record: where to? Give a path, an object with write(record), or a function; got {type(target).__name__}"
    )


def close_all(sinks: Sequence[Sink], error: BaseException | None) -> None:
    """Close sinks, each also where another cannot be closed; the first failure is raised at the end.

    Args:
        sinks: all of a recording.
        error: what ended it, for sinks with a method ``fail``; None for none.
    """
    failures: list[Exception] = []
    for sink in sinks:
        try:
            fail = getattr(sink, "fail", None)
            if error is not None and callable(fail):
                fail(error)
        except Exception as failure:
            failures.append(failure)
        try:
            sink.close()
        except Exception as failure:
            failures.append(failure)
    if failures:
        raise failures[0]


def number(value: float | None) -> Any:
    """Return a number as JSON has it: "inf", "-inf" and "nan" as text."""
    return value if value is None or math.isfinite(value) else str(value)
