"""The command line that the benchmarks share: each backend is measured in a process of its own."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from turns import RESULTS, show

BACKENDS = ("torch", "tensorflow", "mxnet")


def parser(doc: str, pairs: int, recipes: Sequence[str], known: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser of the common options.

    Args:
        doc: the script's docstring; its first line is shown.
        pairs: pairs of turns for each row, unless asked otherwise.
        recipes: which recipes are measured, unless asked otherwise.
        known: which can be asked for.
    """
    made = argparse.ArgumentParser(description=doc.splitlines()[0])
    made.add_argument("backends", nargs="*", help=f"which to measure (default: {' '.join(BACKENDS)})")
    made.add_argument("--pairs", type=int, default=pairs, help=f"pairs of turns for each row (default: {pairs})")
    made.add_argument("--recipes", nargs="+", default=recipes, choices=known, help="which recipes")
    made.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON files (default: %(default)s)")
    made.add_argument("--measure", help=argparse.SUPPRESS)
    return made


def run(made: argparse.ArgumentParser, script: str, name: str, measure: Callable[[str, Any, Path], Any]) -> int:
    """Measure, or start a process for each backend that does; return the exit status.

    Args:
        made: what :func:`parser` returned.
        script: the benchmark's own file.
        name: results are written to ``<name>-<backend>.json``.
        measure: called with a backend, the options and the file to write, in a process for that backend alone.
    """
    options = made.parse_args()
    if options.measure:
        options.out.mkdir(parents=True, exist_ok=True)
        measure(options.measure, options, options.out / f"{name}-{options.measure}.json")
        return 0
    for backend in options.backends:
        if backend not in BACKENDS:
            made.error(f"unknown backend {backend!r}: one of {', '.join(BACKENDS)}")
    passed = [arg for arg in sys.argv[1:] if arg not in BACKENDS]
    failed = []
    for backend in options.backends or BACKENDS:
        command = [sys.executable, script, "--measure", backend, *passed]
        if subprocess.run(command, check=False).returncode:
            failed.append(backend)
        else:
            show(json.loads((options.out / f"{name}-{backend}.json").read_text(encoding="utf-8")))
    if failed:
        print(f"not measured: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0
