"""Starts runs of the example workload for tests, in this process and in another that can be killed."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import forked
from rich.console import Console

import unifiedamp as ua
from unifiedamp.workloads.configuration import Settings, TrainTable, read_settings, read_source
from unifiedamp.workloads.training.loop import train
from unifiedamp.workloads.training.report import Report
from unifiedamp.workloads.training.run import Run

CLASSIFIER = Path(ua.__file__).parents[1] / "examples" / "image_classifier.py"

SHORT = {"epochs": 1, "compile": False}

MOVING = {"kind": "dynamic", "initial_scale": 1024.0, "growth_interval": 3}

POISONED = """
from unifiedamp.cli import app
from examples.data import Batches

clean = Batches.__iter__

def batches(self):
    for number, (x, y) in enumerate(clean(self)):
        yield (x * 1e38 if number in (2, 9, 10, 17) else x), y

Batches.__iter__ = batches
app()
"""
"""The command, with batches in it that overflow: always the same ones."""


def write_config(folder: Path, amp: dict[str, Any] | None = None, **options: Any) -> Path:
    """A configuration of the example; the options are those of ``[train]`` and the workload's own settings."""
    train_table = SHORT | {key: value for key, value in options.items() if key in TrainTable.model_fields}
    chosen = {key: value for key, value in options.items() if key not in TrainTable.model_fields}
    path = folder / "config.json"
    tables = {"workload": str(CLASSIFIER), "amp": amp or {}, "settings": chosen, "train": train_table}
    path.write_text(json.dumps(tables))
    return path


def settings(folder: Path, backend: str, policy: str = "float32", out: str = "run", **options: Any) -> Settings:
    amp = {"backend": backend, "policy": policy, **options.pop("amp", {})}
    return read_settings(read_source(str(write_config(folder, amp, **options))), folder / out)


def quiet() -> Report:
    return Report(Console(file=io.StringIO()))


def run(folder: Path, backend: str, policy: str = "float32", *, resume: bool = False, **options: Any) -> Run:
    return train(settings(folder, backend, policy, **options), quiet(), resume=resume)


def log_of(out: Path) -> dict[str, Any]:
    return json.loads((out / "log.json").read_text())


def start(*arguments: object, code: str = "from unifiedamp.cli import app; app()", **options: Any) -> forked.Popen:
    """Start ``unifiedamp`` with these arguments, away from the checkout, with its code; ``popen`` says how."""
    paths = [str(Path(ua.__file__).parents[1]), str(Path(ua.__file__).parents[1] / "backends"), *sys.path]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return forked.start([sys.executable, "-c", code, *map(str, arguments)], env=env, **options)


def finish(process: forked.Popen, timeout: float = 240) -> tuple[int, str, str]:
    with process:
        out, err = process.communicate(timeout=timeout)
        return process.returncode, out, err
