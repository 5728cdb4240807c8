"""Machine and versions of a run, its JSON file, and its tables.

There are two kinds of record. A record of pairs has two ``columns`` and, in each row, both times and their ratio. A
race has ``against``, the names of the reference configurations, and in each row one configuration's time and its ratio
to each of those.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from unifiedamp.backend import this_processor

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DISTRIBUTIONS = (
    *("unifiedamp", "torch", "triton", "tensorflow", "tensorflow-cpu", "keras", "mxnet", "numpy"),
    *("accelerate", "lightning", "pytorch-lightning", "torchao", "transformers"),
)
FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16")
VARIABLES = ("OMP_NUM_THREADS", "XLA_FLAGS", "TF_FORCE_GPU_ALLOW_GROWTH", "CUDA_VISIBLE_DEVICES")
MIB = 2**20


def versions() -> dict[str, str]:
    """Return the versions of Python and the installed libraries that affect the results."""
    found = {"python": platform.python_version()}
    for name in DISTRIBUTIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def hardware(gpu: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return processor, cores, memory and load of the machine.

    Args:
        gpu: the framework's description of its GPU (``gpu()`` of a module in ``native``), None without one.
    """
    found = this_processor()
    memory = _proc_lines("/proc/meminfo").get("MemTotal", "0 kB").split()[0]
    return {
        "cpu": found.name,
        "cpu_id": f"family {found.family} model {found.model}",
        "cores": os.cpu_count(),
        "bits": [flag for flag in FLAGS if flag in found.flags],
        "memory_gib": round(int(memory) / 2**20),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_before": os.getloadavg()[0],
        "threads": {key: os.environ[key] for key in VARIABLES if key in os.environ},
        **({"gpu": dict(gpu)} if gpu else {}),
    }


def driver() -> str:
    """Return the version of NVIDIA's driver, "?" if unknown."""
    asks = shutil.which("nvidia-smi")
    if asks:
        query = [asks, "--query-gpu=driver_version", "--format=csv,noheader"]
        said = subprocess.run(query, capture_output=True, text=True, check=False, timeout=60).stdout.split()
        if said:
            return said[0]
    try:
        words = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").split()
    except OSError:
        return "?"
    return next((word for word in words if word.count(".") >= 1 and word[0].isdigit()), "?")


def _proc_lines(path: str) -> dict[str, str]:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in reversed(lines) if ":" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def write(path: Path, title: str, columns: Sequence[str], before: Mapping[str, Any], rows: Sequence[Any]) -> None:
    """Write the record of a run of pairs.

    Args:
        path: the JSON file.
        title: heading of the table.
        columns: names of the first and second side.
        before: ``hardware()``, taken before the measurement.
        rows: the comparisons so far; call after each row, so that an interrupted run keeps its results.
    """
    _write(path, title, {"columns": list(columns)}, before, rows)


def write_race(
    path: Path, title: str, against: Sequence[str], shown: str, before: Mapping[str, Any], rows: Sequence[Any]
) -> None:
    """Write the record of a race; see :func:`write`.

    Args:
        path: the JSON file.
        title: heading of the table.
        against: the reference configurations.
        shown: "time" shows ratios of times, "speed" their inverse.
        before: ``hardware()``.
        rows: the standings so far.
    """
    _write(path, title, {"against": list(against), "shown": shown}, before, rows)


def _write(path: Path, title: str, kind: Mapping[str, Any], before: Mapping[str, Any], rows: Sequence[Any]) -> None:
    record = {
        "title": title,
        **kind,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _command(),
        "hardware": before,
        "versions": versions(),
        "rows": [asdict(row) for row in rows],
    }
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _command() -> str:
    """Return the command that repeats the measurement."""
    arguments = [arg for arg in sys.argv[1:] if arg != "--measure"]
    return shlex.join(["python", os.path.relpath(sys.argv[0], ROOT), *arguments])


def show(record: Mapping[str, Any]) -> None:
    """Print a record as a table."""
    labels, numbers = headings(record)
    table = Table(title=record["title"])
    for label in labels:
        table.add_column(label)
    for heading in numbers:
        table.add_column(heading, justify="right")
    for row in record["rows"]:
        table.add_row(*row["labels"].values(), *cells(row, record))
    console = Console(width=max(160, Console().width))
    console.print(table)
    for line in failures(record):
        console.print(line, markup=False, highlight=False)


def failures(record: Mapping[str, Any]) -> list[str]:
    """Return a line for each row that was not measured, with the reason."""
    rows = [row for row in record["rows"] if row.get("failed")]
    return [f"Not measured: {', '.join(row['labels'].values())}: {row['failed']}" for row in rows]


def headings(record: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the headings of a record's labels and of its numbers."""
    labels = list(record["rows"][0]["labels"]) if record["rows"] else []
    if "against" not in record:
        first, second = record["columns"]
        return labels, [f"{first}, ms", f"{second}, ms", "ratio", "95 %", "pairs × steps"]
    sign = "× " if record["shown"] == "speed" else "time / "
    measured = [f"{sign}{name}" for name in record["against"]]
    memory = ["peak, MiB", "held, MiB"] if _has_memory(record) else []
    return labels, ["ms a step", "a second", *measured, *memory, "rounds × steps"]


def _has_memory(record: Mapping[str, Any]) -> bool:
    return any(row["memory"] for row in record["rows"])


def cells(row: Mapping[str, Any], record: Mapping[str, Any] | None = None) -> list[str]:
    """Return a row's numbers as text.

    Args:
        row: a row of a record.
        record: its record; required for a race.
    """
    if record is not None and "against" in record:
        return _race_cells(row, record)
    return [
        f"{row['first_ms']:.3f}",
        f"{row['second_ms']:.3f}",
        f"{row['ratio']:.3f}",
        f"{row['low']:.3f}-{row['high']:.3f}",
        f"{row['pairs']} × {row['steps_per_turn']}",
    ]


def _race_cells(row: Mapping[str, Any], record: Mapping[str, Any]) -> list[str]:
    has_memory = _has_memory(record)
    if row["failed"]:
        rest = len(record["against"]) + 2 * has_memory + 2
        return ["not measured", *[""] * rest]
    ratios = [_ratio(row["ratios"].get(name), record["shown"]) for name in record["against"]]
    memory = [f"{row['memory'][key] / MIB:.0f}" if key in row["memory"] else "" for key in ("peak", "held")]
    rate = f"{row['rate']:.0f} {row['unit']}"
    turns = f"{row['rounds']} × {row['steps_per_turn']}"
    return [f"{row['ms']:.3f}", rate, *ratios, *(memory if has_memory else []), turns]


def _ratio(found: Sequence[float] | None, shown: str) -> str:
    if found is None:
        return ""
    value, low, high = found
    if shown == "speed":
        value, low, high = 1 / value, 1 / high, 1 / low
    return f"{value:.3f} ({low:.3f}-{high:.3f})" if low < high else f"{value:.0f}"
