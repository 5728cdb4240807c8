"""Speedup of each item of ``Tuning``: a session with the item, alternating with one without.

`python benchmarks/tuning.py [torch] [tensorflow] [mxnet]` measures each framework in a separate process, prints a
table and writes `benchmarks/results/tuning-<backend>.json` (`-gpu` on a GPU). Items that the backend lacks on this
device are reported and skipped. Two rows are not items of a session: "prefetch" compares `amp.prefetch` with copying
each batch in the loop, and "set_to_none", which is always on, compares a hand-written loop with and without it.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cli
import numpy as np
from recipes import RECIPES, Parts, find, layered, train_step_of
from timing import WARM_UP, Comparison, Loop, compare, hardware, say, write

import unifiedamp as ua


@dataclass(frozen=True)
class Item:
    """One item to measure.

    Attributes:
        on: the tuning of the first side.
        recipes: recipes on a CPU.
        gpu_recipes: recipes on a GPU.
        float32: use the policy "float32" instead of the device's mixed policy.
        optimizer: torch's optimizer implementation on both sides, before tuning.
        compares_forms: the item is a compile mode, so it is measured once and not in each mode.
    """

    on: Mapping[str, Any] | str
    recipes: tuple[str, ...]
    gpu_recipes: tuple[str, ...]
    float32: bool = False
    optimizer: str = "fused"
    compares_forms: bool = False


CONV, MLP = "conv 28x28", "mlp 3x256, AdamW"
RESNET, SMALL_RESNET, GPT = "ResNet-50 224", "ResNet-50 28", "GPT-2 small 1024"
AGAIN = {"gpt2": "blocks.*", "resnet50": "stages.*", "mlp": "layer*"}
"""Model → the layers to recompute."""

ITEMS = {
    "channels_last": Item({"channels_last": True}, (CONV,), (RESNET,)),
    "tf32": Item({"tf32": True}, (CONV,), (RESNET, GPT), float32=True),
    "cudnn_benchmark": Item({"cudnn_benchmark": True}, (CONV,), (RESNET, SMALL_RESNET)),
    "fused_optimizer": Item({"fused_optimizer": True}, (MLP,), (MLP, GPT), optimizer="foreach"),
    "set_to_none": Item({}, (MLP,), (MLP, GPT), compares_forms=True),
    "compile": Item({"compile": True}, (CONV,), (SMALL_RESNET, RESNET, GPT), compares_forms=True),
    "checkpoint_layers": Item({"checkpoint_layers": AGAIN}, ("wide mlp 3x2048",), (GPT, RESNET)),
    "prefetch": Item({}, (CONV,), (RESNET,)),
    "fast": Item("fast", (CONV,), (RESNET, GPT), optimizer="foreach", compares_forms=True),
}
FORMS = ("off", "default")


@dataclass
class Fed:
    """A loop over host batches; each turn starts and ends the feeding of its batches.

    Attributes:
        feed: takes the number of steps of a turn; yields native batches.
        step: takes a batch.
        finish: synchronizes with the device.
    """

    feed: Callable[[int], Iterable[Any]]
    step: Callable[..., Any]
    finish: Callable[[], Any]

    def turn(self, steps: int) -> float:
        """Run ``steps`` steps; return the seconds per step."""
        start = time.perf_counter()
        for x, y in self.feed(steps):
            self.step(x, y)
        self.finish()
        return (time.perf_counter() - start) / steps


@dataclass(frozen=True)
class Case:
    """One row: an item on a recipe in a form of ``amp.compile``."""

    item: str
    recipe: str
    form: str
    policy: str

    def labels(self, parts: Parts) -> dict[str, str]:
        """Return the labels that identify the row."""
        compiled = "" if ITEMS[self.item].compares_forms else self.form
        return {
            "item": self.item, "recipe": self.recipe, "batch": str(parts.recipe.batch), "policy": self.policy,
            "amp.compile": compiled,
        }  # fmt: skip


def measure(backend: str, case: Case, options: Any) -> Comparison:
    """Measure one row."""
    native = cli.native_of(backend)
    native.begin()
    native.clear()
    parts = Parts(backend, find(case.recipe, options.smoke), ITEMS[case.item].optimizer)
    labels = case.labels(parts)
    if hasattr(native, "peak_of") and native.gpu():
        labels["memory of a step, on / off"] = ""
    turn = cli.turn_seconds(native)
    if case.item == "set_to_none":
        sides = [by_hand(native, parts, none) for none in (True, False)]
        return compare(labels, *sides, options.pairs, options.seconds, turn)
    if case.item == "prefetch":
        on, off = fed(backend, case, parts, native)
        return compare(labels, on, off, options.pairs, options.seconds, 10 * turn)
    sessions = [session(backend, case, parts, on) for on in (True, False)]
    loops = [Loop(layered(amp, parts, plain_layout(native, case)), native.finish) for amp in sessions]
    if native.gpu() and hasattr(native, "peak_of") and labels["amp.compile"] == "off":
        labels["memory of a step, on / off"] = " / ".join(memory(native, loop) for loop in loops)
    result = compare(labels, *loops, options.pairs, options.seconds, turn)
    for amp in sessions:
        amp.close()
    return result


def memory(native: Any, loop: Loop) -> str:
    """Return the peak allocation of a warm step; a captured one allocates nothing."""
    loop.turn(WARM_UP)
    return f"{native.peak_of(lambda: loop.turn(3)) / 2**20:.0f} MiB"


def session(backend: str, case: Case, parts: Parts, on: bool) -> ua.Amp:
    """Return a session with or without the item."""
    form = "default" if ITEMS[case.item].compares_forms else case.form
    scale = parts.recipe.loss_scale(case.policy)
    tuning = tuning_of(case.item, parts) if on else None
    return ua.Amp(backend, case.policy, loss_scale=scale, compile=form, tuning=tuning)


def tuning_of(item: str, parts: Parts) -> Any:
    """Return the tuning of an item, for a recipe."""
    if item == "checkpoint_layers":
        return {"checkpoint_layers": [AGAIN[parts.recipe.model]]}
    return ITEMS[item].on


def plain_layout(native: Any, case: Case) -> Callable[[Any], Any]:
    """Return a function that restores the model's default layout, if the layout is measured."""
    asked = case.item in ("channels_last", "fast")
    return getattr(native, "plain_layout", _same) if asked else _same


def _same(model: Any) -> Any:
    return model


def by_hand(native: Any, parts: Parts, none: bool) -> Loop:
    """Return a hand-written loop that sets gradients to None, or zeroes them."""
    with native.scope():
        model = parts.model()
        optimizer = parts.optimizer(model)
    forward = native.forward_of(model, parts.loss_fn, native.low())
    x, y = native.tensor(parts.images), native.tensor(parts.labels)

    def step() -> Any:
        loss = forward(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=none)
        return loss

    return Loop(step, native.finish)


def fed(backend: str, case: Case, parts: Parts, native: Any) -> tuple[Fed, Fed]:
    """Return loops with batches from the host, prefetched or copied on demand."""
    loops = []
    for ahead in (True, False):
        scale = parts.recipe.loss_scale(case.policy)
        amp = ua.Amp(backend, case.policy, loss_scale=scale, compile=case.form)
        step = train_step_of(amp, parts)
        loops.append(Fed(_feed(amp, parts, ahead), step, native.finish))
    return loops[0], loops[1]


def _feed(amp: ua.Amp, parts: Parts, ahead: bool) -> Callable[[int], Iterable[Any]]:
    def feed(steps: int) -> Iterable[Any]:
        batches = host_batches(parts, steps)
        if ahead:
            return amp.prefetch(batches)
        return ((amp.to_native(x), amp.to_native(y)) for x, y in batches)

    return feed


def host_batches(parts: Parts, count: int) -> Iterator[tuple[Any, Any]]:
    """Yield batches like a data loader: bytes, scaled to floats."""
    stored = (np.clip(parts.images * 32 + 128, 0, 255)).astype(np.uint8)
    for _ in range(count):
        yield (stored.astype(np.float32) - 128.0) / 32.0, parts.labels


def cases(backend: str, options: Any, native: Any) -> Iterator[Case]:
    """Yield the cases to measure; report the others."""
    gpu = bool(native.gpu())
    amp = ua.Amp(backend, "float32")
    declared = amp.capabilities.tuning
    amp.close()
    for name in options.items:
        item, support = ITEMS[name], declared.get(name)
        if support is not None and not support:
            say(f"{name}: not measured: {support.reason}")
            continue
        if name == "set_to_none" and not hasattr(native, "zeroes_gradients"):
            say(f"{name}: not measured: {support and support.reason}")
            continue
        for recipe in options.recipes or recipes_of(backend, name, gpu):
            for form in FORMS[:1] if item.compares_forms else options.forms or FORMS[: 1 + gpu]:
                yield Case(name, recipe, form, "float32" if item.float32 else policy(backend, native))


def recipes_of(backend: str, name: str, gpu: bool) -> tuple[str, ...]:
    """Return an item's recipes on a device; the only large model for TensorFlow is Keras's ResNet-50."""
    item = ITEMS[name]
    if not gpu or backend == "torch":
        return item.gpu_recipes if gpu else item.recipes
    return (RESNET,) if RESNET in item.gpu_recipes and name != "checkpoint_layers" else item.recipes


def policy(backend: str, native: Any) -> str:
    """Return the device's mixed policy if it runs, else "float32"."""
    low = native.low()
    return low if ua.available_backends()[backend].capabilities.policies[low] else "float32"


def measure_all(backend: str, options: Any, path: Path) -> None:
    """Measure every requested row; write the results after each. Rows that fail are reported and skipped."""
    native = cli.native_of(backend)
    before = hardware(native.gpu())
    title = f"{backend}: step time with an item of Tuning over without, {before.get('gpu', {}).get('name', 'CPU')}"
    rows: list[Comparison] = []
    for case in cases(backend, options, native):
        try:
            rows.append(measure(backend, case, options))
        except Exception:
            traceback.print_exc()
            say(f"{case}: not measured, see above")
            continue
        say(f"{', '.join(rows[-1].labels.values())}: {rows[-1].ratio:.3f} ({rows[-1].low:.3f}-{rows[-1].high:.3f})")
        write(path, title, ("on", "off"), before, rows)


if __name__ == "__main__":
    parser = cli.parser(__doc__, 40, None, tuple(RECIPES))
    parser.add_argument("--items", nargs="+", choices=tuple(ITEMS), default=list(ITEMS), help="items to measure")
    parser.add_argument("--forms", nargs="+", choices=("off", "default", "max"), help="modes of amp.compile")
    sys.exit(cli.run(parser, __file__, "tuning", measure_all))
