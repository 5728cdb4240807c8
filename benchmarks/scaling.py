"""Overhead by number and size of parameter tensors: unifiedamp's loop compared with a hand-written eager one.

`python benchmarks/scaling.py [torch] [tensorflow] [mxnet]` trains chains of equal dense layers, each framework in a
separate process, prints a table and writes `benchmarks/results/scaling-<backend>.json` (`-gpu` on a GPU).
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cli
from race import Limits, Race, Standing, failure, warm_up
from recipes import Parts, Recipe, layered
from timing import Loop, hardware, write_race

import unifiedamp as ua

NATIVE = "native AMP"
FORMS = {"ours eager": "off", "ours default": "default", "ours max": "max"}
TENSORS, WIDTHS = (10, 100, 1000, 10000), (16, 256)
MOST = {"torch": 10000, "tensorflow": 100, "mxnet": 1000}
"""Largest number of tensors by default: Keras takes minutes for thousands of layers, compilers (below) for hundreds."""
MOST_COMPILED = 100
BATCH = 32


def chain(tensors: int, width: int) -> Recipe:
    """Return a model with ``tensors`` weights and biases; the tiny learning rate keeps it nearly constant."""
    return Recipe("chain", (width,), BATCH, width, depth=tensors // 2 - 1, classes=width, rate=1e-6)


def native(parts: Parts, by: Any) -> Callable[[], Any]:
    """Return the hand-written eager loop with a dynamic loss scale."""
    with by.scope():
        model = parts.model()
        optimizer = parts.optimizer(model)
        step = by.train_step(model, optimizer, parts.loss_fn, parts.recipe.first_scale, False)
    x, y = by.tensor(parts.images), by.tensor(parts.labels)
    return lambda: step(x, y)


def ours(parts: Parts, by: Any, mode: str) -> Callable[[], Any]:
    """Return unifiedamp's loop with a dynamic loss scale."""
    return layered(ua.Amp(parts.backend, by.low(), loss_scale="dynamic", compile=mode), parts)


def measure(backend: str, size: tuple[int, int], options: Any, limits: Limits) -> Iterator[Standing]:
    """Yield the row of each form at one size."""
    by = cli.native_of(backend)
    by.begin()
    parts = Parts(backend, chain(*size))
    race = Race("step", 1, limits)
    for form in (NATIVE, *options.forms):
        if form in FORMS and FORMS[form] != "off" and size[0] > options.most_compiled:
            continue
        by.clear()
        labels = {"tensors": str(size[0]), "width": str(size[1]), "by": form}
        try:
            step = native(parts, by) if form == NATIVE else ours(parts, by, FORMS[form])
            loop = Loop(step, by.finish, by.around if form == NATIVE else Loop.around)
            yield race.enter(labels, form, warm_up(loop, by.number), stays=form == NATIVE)
        except Exception as error:
            yield failure(labels, error)
        step = loop = None
        gc.collect()


def measure_all(backend: str, options: Any, path: Path) -> None:
    """Measure every requested size; write the results after each form."""
    by = cli.native_of(backend)
    before = hardware(by.gpu())
    limits = Limits(options.pairs, options.seconds, cli.turn_seconds(by))
    title = f"{backend}: by number of tensors, {by.low()}, {before['gpu']['name'] if by.gpu() else 'CPU'}"
    rows: list[Standing] = []
    for size in sizes(backend, options):
        for row in measure(backend, size, options, limits):
            rows.append(row)
            write_race(path, title, [NATIVE], "time", before, rows)


def sizes(backend: str, options: Any) -> list[tuple[int, int]]:
    """Return (tensors, width) of the requested models."""
    numbers = options.tensors or [number for number in TENSORS if number <= MOST[backend]]
    widths = [8] if options.smoke else options.widths
    return [(number, width) for number in numbers for width in widths]


if __name__ == "__main__":
    parser = cli.parser(__doc__, 50, (), ())
    parser.add_argument("--tensors", nargs="+", type=int, help="numbers of parameter tensors (even)")
    parser.add_argument("--widths", nargs="+", type=int, default=WIDTHS, help="units of each layer")
    parser.add_argument("--forms", nargs="+", default=tuple(FORMS), choices=tuple(FORMS), help="forms to measure")
    parser.add_argument("--most-compiled", type=int, default=MOST_COMPILED, help="largest number of tensors to compile")
    sys.exit(cli.run(parser, __file__, "scaling", measure_all))
