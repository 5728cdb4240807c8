"""unifiedamp and other mixed-precision libraries on torch, each compared with a hand-written eager loop.

`python benchmarks/peers.py` times Hugging Face Accelerate, Lightning Fabric and three forms of unifiedamp, each
alternating with a hand-written loop of `torch.autocast` and `GradScaler`, all in one process. It prints a table and
writes `benchmarks/results/peers-torch.json` (`-gpu` on a GPU). Libraries that are not installed are reported.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cli
from race import Limits, Race, Standing, failure, warm_up
from recipes import GPU_RECIPES, RECIPES, Parts, find, layered
from timing import Loop, hardware, write_race

import unifiedamp as ua

CPU_RECIPES = ("mlp 3x256", "conv 28x28")
NATIVE = "native AMP"


def native(parts: Parts, by: Any) -> Callable[[], Any]:
    """Hand-written loop."""
    with by.scope():
        model = parts.model()
        optimizer = parts.optimizer(model)
    scale = parts.recipe.first_scale if by.low() == "mixed_float16" else None
    step = by.train_step(model, optimizer, parts.loss_fn, scale, False)
    x, y = by.tensor(parts.images), by.tensor(parts.labels)
    return lambda: step(x, y)


def accelerate(parts: Parts, by: Any) -> Callable[[], Any]:
    """Hugging Face Accelerate."""
    from accelerate import Accelerator
    from accelerate.utils import GradScalerKwargs

    low = "fp16" if by.low() == "mixed_float16" else "bf16"
    scaler = GradScalerKwargs(init_scale=parts.recipe.first_scale)
    accelerator = Accelerator(mixed_precision=low, cpu=by.DEVICE == "cpu", kwargs_handlers=[scaler])
    with by.scope():
        model = parts.model()
        optimizer = parts.optimizer(model)
    model, optimizer = accelerator.prepare(model, optimizer)
    loss_fn, x, y = parts.loss_fn, by.tensor(parts.images), by.tensor(parts.labels)

    def step() -> Any:
        with accelerator.autocast():
            loss = loss_fn(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def fabric(parts: Parts, by: Any) -> Callable[[], Any]:
    """Lightning Fabric."""
    from lightning.fabric import Fabric
    from lightning.fabric.plugins import MixedPrecision
    from torch.amp import GradScaler

    half = by.low() == "mixed_float16"
    scaler = GradScaler(by.DEVICE, init_scale=parts.recipe.first_scale) if half else None
    precision = MixedPrecision("16-mixed" if half else "bf16-mixed", by.DEVICE, scaler)
    found = Fabric(accelerator=by.DEVICE, devices=1, plugins=[precision])
    with by.scope():
        model = parts.model()
        optimizer = parts.optimizer(model)
    model, optimizer = found.setup(model, optimizer)
    loss_fn, x, y = parts.loss_fn, by.tensor(parts.images), by.tensor(parts.labels)

    def step() -> Any:
        loss = loss_fn(model(x), y)
        found.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def ours(mode: str) -> Callable[[Parts, Any], Callable[[], Any]]:
    """Return a function that makes unifiedamp's loop."""

    def make(parts: Parts, by: Any) -> Callable[[], Any]:
        scale = parts.recipe.loss_scale(by.low())
        return layered(ua.Amp("torch", by.low(), loss_scale=scale, compile=mode), parts)

    return make


CONTESTANTS: dict[str, Callable[[Parts, Any], Callable[[], Any]]] = {
    NATIVE: native,
    "Accelerate": accelerate,
    "Fabric": fabric,
    "ours eager": ours("off"),
    "ours default": ours("default"),
    "ours max": ours("max"),
}


def measure(name: str, by: Any, options: Any, limits: Limits) -> Iterator[Standing]:
    """Yield the row of each contestant of one recipe."""
    by.begin()
    recipe = find(name, options.smoke)
    race = Race(recipe.unit, recipe.per_step, limits)
    for key in [NATIVE, *(key for key in options.contestants if key != NATIVE)]:
        by.clear()
        labels = {"recipe": name, "batch": str(recipe.batch), "by": key}
        try:
            loop = Loop(CONTESTANTS[key](Parts("torch", recipe), by), by.finish, by.around)
            yield race.enter(labels, key, warm_up(loop, by.number), stays=key == NATIVE)
        except ImportError as error:
            yield failure(labels, f"{error.name} is not installed")
        except Exception as error:
            yield failure(labels, error)
        loop = None
        gc.collect()


def measure_all(backend: str, options: Any, path: Path) -> None:
    """Measure every requested recipe; write the results after each contestant."""
    by = cli.native_of(backend)
    before = hardware(by.gpu())
    limits = Limits(options.pairs, options.seconds, cli.turn_seconds(by))
    title = f"{backend}: mixed-precision libraries, {by.low()}, {before['gpu']['name'] if by.gpu() else 'CPU'}"
    rows: list[Standing] = []
    for name in options.recipes or (GPU_RECIPES if by.gpu() else CPU_RECIPES):
        for row in measure(name, by, options, limits):
            rows.append(row)
            write_race(path, title, [NATIVE], "time", before, rows)


if __name__ == "__main__":
    if not {"torch", "--measure", "-h", "--help"} & set(sys.argv[1:]):
        sys.argv.insert(1, "torch")
    parser = cli.parser(__doc__, 100, None, tuple(RECIPES))
    parser.add_argument("--contestants", nargs="+", default=tuple(CONTESTANTS), choices=tuple(CONTESTANTS))
    sys.exit(cli.run(parser, __file__, "peers", measure_all))
