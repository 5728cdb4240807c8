"""Starts recipe runs for tests, in this process and in another that can be killed."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import forked
from rich.console import Console
from unifiedamp_examples.recipe import train
from unifiedamp_examples.report import Report
from unifiedamp_examples.run import Run
from unifiedamp_examples.settings import Settings, read_settings

import unifiedamp as ua

SHORT = {"epochs": 1, "compile": False}

MOVING = {"kind": "dynamic", "initial_scale": 1024.0, "growth_interval": 3}

POISONED = """
from unifiedamp.cli import app
from unifiedamp_examples.data import Data

clean = Data.batches

def batches(self, *where):
    for number, (x, y) in enumerate(clean(self, *where)):
        yield (x * 1e38 if number in (2, 9, 10, 17) else x), y

Data.batches = batches
app()
"""
"""The command, with batches in it that overflow: always the same ones."""


def write_config(folder: Path, amp: dict[str, Any] | None = None, **train_table: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({"amp": amp or {}, "train": {**SHORT, **train_table}}))
    return path


def settings(folder: Path, backend: str, policy: str = "float32", out: str = "run", **options: Any) -> Settings:
    amp = {"backend": backend, "policy": policy, **options.pop("amp", {})}
    return read_settings(write_config(folder, amp, **options), folder / out)


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
