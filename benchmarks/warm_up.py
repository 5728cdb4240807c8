"""Seconds until a compiled training step is ready, compared with torch.compile of forward and backward.

`python benchmarks/warm_up.py` needs torch and a GPU; it prints a table and writes
`benchmarks/results/warm-up-torch-gpu.json`. Each side runs its first steps in a separate process, in turns: first with
an empty cache of Inductor, then again with what it left there. `--smoke --out FOLDER` runs tiny models, on any machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from native import torch_amp as native
from recipes import WARM_UP, Parts, layered, tiny
from record import RESULTS, hardware, show, write
from timing import Comparison, Loop, ratio_of, say

import unifiedamp as ua

STEPS = 6
"""First steps that are timed: amp.compile captures the fourth, and replays the others."""
FORMS = ("default", "max")
NATIVE = "torch.compile"
PATIENCE = 500.0


def build(name: str, form: str, smoke: bool) -> Loop:
    """Return a training loop: native, or ours in a mode of ``amp.compile``."""
    recipe = tiny(WARM_UP[name]) if smoke else WARM_UP[name]
    parts, policy = Parts("torch", recipe), native.low()
    if form != NATIVE:
        amp = ua.Amp("torch", policy, loss_scale=recipe.loss_scale(policy), compile=form)
        return Loop(layered(amp, parts), native.finish)
    with native.scope():
        model, x, y = parts.model(), native.tensor(parts.images), native.tensor(parts.labels)
        optimizer = parts.optimizer(model)
    scale = recipe.first_scale if policy == "mixed_float16" else None
    step = native.train_step(model, optimizer, parts.loss_fn, scale, "default", policy)
    return Loop(lambda: step(x, y), native.finish)


def first_steps(loop: Loop) -> float:
    """Return the seconds that the first steps take."""
    begun = time.perf_counter()
    for _ in range(STEPS):
        loop.step()
    loop.finish()
    return time.perf_counter() - begun


def timed(name: str, form: str, smoke: bool, cache: str) -> float:
    """Return :func:`first_steps` of a new process whose compilers keep their results in ``cache``."""
    command = [sys.executable, __file__, "--one", name, form, *(["--smoke"] if smoke else [])]
    folders = {"TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor", "TRITON_CACHE_DIR": f"{cache}/triton"}
    done = subprocess.run(
        command, env={**os.environ, **folders}, stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE
    )
    seconds = float(done.stdout.split()[-1])
    say(f"{name}, {form}: {seconds:.1f} s")
    return seconds


def measure(name: str, options: Any) -> Iterator[Comparison]:
    """Yield the rows of one model: each mode, with an empty cache and with a filled one."""
    forms = (NATIVE, *options.forms)
    times: dict[tuple[str, str], list[float]] = {}
    for turn in range(options.pairs):
        for form in forms if turn % 2 == 0 else reversed(forms):
            with tempfile.TemporaryDirectory() as cache:
                for state in ("empty", "filled"):
                    times.setdefault((state, form), []).append(timed(name, form, options.smoke, cache))
    for state in ("empty", "filled"):
        for form in options.forms:
            ours, theirs = np.array(times[state, form]), np.array(times[state, NATIVE])
            labels = {"model": name, "amp.compile": form, "cache": state}
            ms = [float(np.median(each)) * 1e3 for each in (ours, theirs)]
            yield Comparison(labels, *ms, *ratio_of(ours, theirs), len(ours), STEPS)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipes", nargs="+", choices=tuple(WARM_UP), default=tuple(WARM_UP), help="(default: all)")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS, help="modes of amp.compile (default: all)")
    parser.add_argument("--pairs", type=int, default=2, help="runs of each (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON file (default: %(default)s)")
    parser.add_argument("--smoke", action="store_true", help="tiny models, to test the script")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(first_steps(build(*options.one, options.smoke)))
        return
    if options.smoke and options.out == RESULTS:
        parser.error("--smoke measures nothing useful: pass --out")
    before = hardware(native.gpu())
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"warm-up-torch{'-gpu' if native.gpu() else ''}.json"
    where = before["gpu"]["name"] if native.gpu() else "CPU"
    rows: list[Comparison] = []
    for name in options.recipes:
        for row in measure(name, options):
            rows.append(row)
            title = f"torch: time until a step is ready, amp.compile over {NATIVE}, {native.low()} ({where})"
            write(path, title, ("amp.compile", NATIVE), before, rows)
    show(json.loads(path.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
