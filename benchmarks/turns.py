"""Two loops timed in turns in one process, and a record of where that was done.

A turn is a handful of steps, long enough that the clock's grain and the cold start after the other loop's turn do not
matter. A pair is one turn of each, in alternating order. What counts is the median of the pairs' ratios: whatever slows
the machine down for a while slows both turns of a pair.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
TURN_SECONDS = 0.01
WARM_UP = 12
DISTRIBUTIONS = ("unifiedamp", "torch", "tensorflow", "tensorflow-cpu", "keras", "mxnet", "numpy")
FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16")


@dataclass
class Loop:
    """One side of a comparison.

    Attributes:
        step: runs one training step on a fixed batch.
        finish: waits until the device has done what was asked.
        around: entered for each turn, outside the clock (for process-wide patches of this side alone).
    """

    step: Callable[[], Any]
    finish: Callable[[], Any]
    around: Callable[[], AbstractContextManager[Any]] = field(default=nullcontext)

    def turn(self, steps: int) -> float:
        """Run some steps and return the seconds that one took."""
        step = self.step
        with self.around():
            start = time.perf_counter()
            for _ in range(steps):
                step()
            self.finish()
            return (time.perf_counter() - start) / steps


@dataclass(frozen=True)
class Comparison:
    """What came out: milliseconds per step of both sides (medians), and the ratio first / second.

    Attributes:
        labels: what tells this row from others, by column.
        ratio: median of the pairs' ratios; ``low`` and ``high`` bound it with 95 % confidence (bootstrap).
    """

    labels: Mapping[str, str]
    first_ms: float
    second_ms: float
    ratio: float
    low: float
    high: float
    pairs: int
    steps_per_turn: int


def compare(labels: Mapping[str, str], first: Loop, second: Loop, pairs: int) -> Comparison:
    """Time two loops in turns; both are warmed up (and so compiled) before."""
    for loop in (first, second):
        loop.turn(WARM_UP)
    seconds = max(loop.turn(3) for loop in (first, second))
    steps = max(1, round(TURN_SECONDS / seconds))
    gc.collect()
    gc.disable()
    try:
        times = np.array([_pair(first, second, steps, swapped=bool(i % 2)) for i in range(pairs)])
    finally:
        gc.enable()
    ratios = times[:, 0] / times[:, 1]
    low, high = bootstrap(ratios)
    first_ms, second_ms = (float(value) for value in np.median(times, axis=0) * 1e3)
    return Comparison(labels, first_ms, second_ms, float(np.median(ratios)), low, high, pairs, steps)


def _pair(first: Loop, second: Loop, steps: int, swapped: bool) -> tuple[float, float]:
    if not swapped:
        return first.turn(steps), second.turn(steps)
    later = second.turn(steps)
    return first.turn(steps), later


def bootstrap(values: Any, rounds: int = 2000, seed: int = 0) -> tuple[float, float]:
    """Return the 95 % percentile interval of the median of ``values``."""
    rng = np.random.default_rng(seed)
    medians = np.median(rng.choice(values, (rounds, len(values))), axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(low), float(high)


def versions() -> dict[str, str]:
    """Return the versions of what is installed of the parts that matter."""
    found = {"python": platform.python_version()}
    for name in DISTRIBUTIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, Any]:
    """Return processor, cores and memory, and how busy the machine was."""
    info = _proc_lines("/proc/cpuinfo")
    flags = info.get("flags", "").split()
    memory = _proc_lines("/proc/meminfo").get("MemTotal", "0 kB").split()[0]
    return {
        "cpu": info.get("model name", platform.processor()),
        "cpu_id": f"family {info.get('cpu family', '?')} model {info.get('model', '?')}",
        "cores": os.cpu_count(),
        "bits": [flag for flag in FLAGS if flag in flags],
        "memory_gib": round(int(memory) / 2**20),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_before": os.getloadavg()[0],
        "threads": {key: os.environ[key] for key in ("OMP_NUM_THREADS",) if key in os.environ},
    }


def _proc_lines(path: str) -> dict[str, str]:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in reversed(lines) if ":" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def write(
    path: Path, title: str, columns: Sequence[str], before: Mapping[str, Any], rows: Sequence[Comparison]
) -> None:
    """Write the record of a run.

    Args:
        path: the JSON file.
        title: one line for people.
        columns: what the first and the second side are called.
        before: ``hardware()`` as it was before the measurement.
        rows: the comparisons.
    """
    record = {
        "title": title,
        "columns": list(columns),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _command(),
        "hardware": before,
        "versions": versions(),
        "rows": [asdict(row) for row in rows],
    }
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _command() -> str:
    """The command that measures this again."""
    arguments = [arg for arg in sys.argv[1:] if arg != "--measure"]
    return shlex.join(["python", os.path.relpath(sys.argv[0], ROOT), *arguments])


def show(record: Mapping[str, Any]) -> None:
    """Print what :func:`write` wrote as a table."""
    first, second = record["columns"]
    table = Table(title=record["title"])
    for label in record["rows"][0]["labels"]:
        table.add_column(label)
    for heading in (f"{first}, ms", f"{second}, ms", "ratio", "95 %", "pairs × steps"):
        table.add_column(heading, justify="right")
    for row in record["rows"]:
        table.add_row(*row["labels"].values(), *cells(row))
    Console(width=120).print(table)


def cells(row: Mapping[str, Any]) -> list[str]:
    """Return a row's numbers as text."""
    return [
        f"{row['first_ms']:.3f}",
        f"{row['second_ms']:.3f}",
        f"{row['ratio']:.3f}",
        f"{row['low']:.3f}-{row['high']:.3f}",
        f"{row['pairs']} × {row['steps_per_turn']}",
    ]
