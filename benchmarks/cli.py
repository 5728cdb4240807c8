"""The command line shared by the benchmarks; each backend is measured in a separate process."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from record import RESULTS, show
from timing import GPU_TURN_SECONDS, TURN_SECONDS

from unifiedamp.config import plugins

BACKENDS = ("torch", "tensorflow", "mxnet")


def parser(doc: str, pairs: int, recipes: Sequence[str] | None, known: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser of the common options.

    Args:
        doc: the script's docstring; its first line is the description.
        pairs: default number of pairs of turns per row.
        recipes: default recipes; None if they depend on the device.
        known: all recipes.
    """
    made = argparse.ArgumentParser(description=doc.splitlines()[0])
    made.add_argument("backends", nargs="*", help=f"backends to measure (default: {' '.join(BACKENDS)})")
    made.add_argument("--pairs", type=int, default=pairs, help=f"pairs of turns for each row (default: {pairs})")
    made.add_argument("--seconds", type=float, default=math.inf, help="time limit per row, in seconds")
    made.add_argument("--recipes", "--rows", nargs="+", default=recipes, choices=known, help="recipes to measure")
    made.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON files (default: %(default)s)")
    made.add_argument("--smoke", action="store_true", help="tiny models, to test the script")
    made.add_argument("--measure", help=argparse.SUPPRESS)
    return made


def native_of(backend: str) -> Any:
    """Return the backend's module of ``native``, with the framework imported the way the backend does it."""
    plugins.load_plugin(backend).load()
    return importlib.import_module(f"native.{backend}_amp")


def turn_seconds(native: Any) -> float:
    """Return the seconds of a turn on this device."""
    return GPU_TURN_SECONDS if native.gpu() else TURN_SECONDS


def run(made: argparse.ArgumentParser, script: str, name: str, measure: Callable[[str, Any, Path], Any]) -> int:
    """Start a process that measures each backend, or measure in this one; return the exit status.

    Args:
        made: the result of :func:`parser`.
        script: the benchmark's file.
        name: results are written to ``<name>-<backend>.json``, on a GPU to ``<name>-<backend>-gpu.json``.
        measure: called with a backend, the options and the file to write, in a separate process per backend.
    """
    options = made.parse_args()
    if options.smoke and options.out == RESULTS:
        made.error("--smoke measures nothing useful: pass another folder as --out")
    if options.measure:
        return _measure(options, name, measure)
    for backend in options.backends:
        if backend not in BACKENDS:
            made.error(f"unknown backend {backend!r}: one of {', '.join(BACKENDS)}")
    passed = [arg for arg in sys.argv[1:] if arg not in BACKENDS]
    failed = []
    for backend in options.backends or BACKENDS:
        command = [sys.executable, script, "--measure", backend, *passed]
        if subprocess.run(command, check=False).returncode:
            failed.append(backend)
    if failed:
        print(f"not measured: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _measure(options: Any, name: str, measure: Callable[[str, Any, Path], Any]) -> int:
    options.out.mkdir(parents=True, exist_ok=True)
    suffix = "-gpu" if native_of(options.measure).gpu() else ""
    path = options.out / f"{name}-{options.measure}{suffix}.json"
    measure(options.measure, options, path)
    show(json.loads(path.read_text(encoding="utf-8")))
    return 0
