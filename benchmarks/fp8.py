"""Step time and loss of mixed_float8's recipes compared with mixed_bfloat16, or torchao, on transformer blocks.

`python benchmarks/fp8.py --model llama` needs torch and a GPU with float8; it prints a table and writes
`benchmarks/results/fp8-torch.json`. `--loss-steps 5000` trains each before, on new batches. `--smoke --out FOLDER` runs
small sizes with float8 emulated, on any machine. `--beside torchao` compares with torchao's own float8 layers instead
(`pip install torchao`), and writes `fp8-torchao.json`.
"""

from __future__ import annotations

import argparse
import functools
import gc
import itertools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from blocks import BLOCKS, EXPERTS, LLAMA, SMOKE, Chain, Sizes, Stack, training_step
from native import torchao_float8
from native.torch_amp import gpu
from record import RESULTS, hardware, show, write
from timing import Comparison, Loop, compare

import unifiedamp as ua

BFLOAT16, TORCHAO = "mixed_bfloat16", "torchao"
RECIPES = ("tensorwise", "delayed", "rowwise_gw_hp", "rowwise", "block128")
LAST = 20
"""Losses are compared as the mean over the last ``LAST`` steps."""


def session(policy: str, emulate: bool) -> ua.Amp:
    """Return a session; the head stays in bfloat16, as is usual."""
    if not policy.startswith("mixed_float8"):
        return ua.Amp("torch", policy)
    return ua.Amp("torch", ua.Policy.parse(policy).replace(layer_overrides={"head": "bfloat16"}, emulate=emulate))


def trained(policy: str, form: str, options: Any) -> tuple[ua.Amp, Callable[[Any, Any], Any]]:
    """Return a session and its training step; all start with the same weights."""
    amp = session(policy, options.smoke)
    torch.manual_seed(0)
    with amp.scope():
        model = Stack(options.sizes)
        optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, fused=True)
    model, optimizer = amp.prepare(model, optimizer)
    return amp, amp.compile(training_step(amp, model, optimizer), mode=form)


def final_loss(run: tuple[ua.Amp, Callable[[Any, Any], Any]], options: Any) -> float:
    """Train for ``options.loss_steps`` and return the mean loss of the last steps."""
    amp, step = run
    losses = [step(*batch).detach().clone() for batch in batches(amp, options)]
    return float(torch.stack(losses[-LAST:]).float().mean())


def batches(amp: ua.Amp, options: Any) -> Iterator[tuple[Any, Any]]:
    """Yield a new batch for each step (a model this large memorizes batches); the same ones in each run."""
    for batch in drawn(options.sizes, options.loss_steps):
        tokens, targets = (amp.to_native(part) for part in batch)
        yield tokens, targets


@functools.cache
def drawn(sizes: Sizes, count: int) -> list[Any]:
    """Return so many batches; drawing them takes longer than training does."""
    chain = Chain(sizes)
    return [chain.batch() for _ in range(count)]


def loop(run: tuple[ua.Amp, Callable[[Any, Any], Any]], options: Any) -> Loop:
    """Return a training loop on one fixed batch."""
    amp, step = run
    tokens, targets = (amp.to_native(part) for part in Chain(options.sizes).batch())
    return Loop(lambda: step(tokens, targets), finish)


def finish() -> None:
    """Wait for the GPU; a CPU's steps are done when they return."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def forget() -> None:
    """Free what was compiled and allocated for other rows."""
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def other(recipe: str, form: str, options: Any) -> tuple[ua.Amp, Callable[[Any, Any], Any]]:
    """Return what a recipe is compared with: a session that makes batches, and a training step."""
    if options.beside == BFLOAT16:
        return trained(BFLOAT16, form, options)
    step = torchao_float8.training_step(
        recipe, options.sizes, options.lr, compiled=form != "off", emulate=options.smoke
    )
    return ua.Amp("torch", "float32"), step


def measure(recipe: str, form: str, options: Any, of_other: dict[tuple[str, str], float]) -> Comparison:
    """Measure one row: first the losses, if requested, one after the other; then the alternating step times.

    Args:
        recipe: of float8.
        form: mode of ``amp.compile``.
        options: of the command.
        of_other: recipe of torchao, or nothing for mixed_bfloat16, and form → its loss, trained once.
    """
    runs = [trained(f"mixed_float8;recipe={recipe}", form, options), other(recipe, form, options)]
    sizes = options.sizes
    labels = {
        "recipe": recipe,
        "blocks × width": f"{sizes.blocks} × {sizes.width}, {sizes.model}",
        "batch × length": f"{sizes.batch} × {sizes.length}",
        "amp.compile": form,
    }
    if options.loss_steps:
        low = final_loss(runs[0], options)
        key = ("" if options.beside == BFLOAT16 else recipe, form)
        if key not in of_other:
            of_other[key] = final_loss(runs[1], options)
        high = of_other[key]
        labels[f"loss after {options.loss_steps} steps"] = f"{low:.4f} / {high:.4f} = {low / high:.4f}"
    row = compare(labels, *(loop(run, options) for run in runs), options.pairs)
    runs.clear()
    forget()
    return row


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="small sizes, float8 emulated")
    parser.add_argument("--pairs", type=int, help="pairs of turns (default: 30; with --smoke 2)")
    parser.add_argument("--forms", nargs="+", choices=("off", "default", "max"), help="modes of amp.compile")
    parser.add_argument("--model", choices=tuple(BLOCKS), default="gpt", help="the blocks (default: %(default)s)")
    parser.add_argument("--loss-steps", type=int, default=0, help="steps of the loss comparison (default: none)")
    parser.add_argument("--lr", type=float, help="AdamW's learning rate (default: 1e-4; with --smoke 3e-3)")
    for name, value in vars(Sizes()).items():
        if name != "model":
            parser.add_argument(f"--{name}", type=int, help=f"(default: {value})")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON file (default: %(default)s)")
    return parser


def parse(parser: argparse.ArgumentParser) -> Any:
    """Return the options."""
    options = parser.parse_args()
    if options.smoke and options.out == RESULTS:
        parser.error("--smoke measures nothing useful: pass --out")
    base = vars(SMOKE if options.smoke else {"llama": LLAMA, "experts": EXPERTS}.get(options.model, Sizes()))
    options.sizes = Sizes(**{name: getattr(options, name) or value for name, value in base.items()})
    options.pairs = options.pairs or (2 if options.smoke else 30)
    options.lr = options.lr or (3e-3 if options.smoke else 1e-4)
    options.forms = options.forms or (["off"] if options.smoke else ["default", "max"])
    return options


def main() -> None:
    """Measure and write."""
    parser = arguments()
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, help="(default: all that both have)")
    parser.add_argument("--beside", choices=(BFLOAT16, TORCHAO), default=BFLOAT16, help="(default: %(default)s)")
    options = parse(parser)
    known = RECIPES if options.beside == BFLOAT16 else tuple(torchao_float8.RECIPES)
    options.recipes = options.recipes or known
    if not set(options.recipes) <= set(known):
        parser.error(f"torchao has the recipes {', '.join(known)}")
    before = hardware(gpu())
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / ("fp8-torch.json" if options.beside == BFLOAT16 else "fp8-torchao.json")
    how = "emulated, not to be compared" if options.smoke else (gpu() or {}).get("name", "cpu")
    rows: list[Comparison] = []
    of_other: dict[tuple[str, str], float] = {}
    for recipe, form in itertools.product(options.recipes, options.forms):
        rows.append(measure(recipe, form, options, of_other))
        title = f"torch: step time, mixed_float8 over {options.beside} ({how})"
        write(path, title, ("mixed_float8", options.beside), before, rows)
    show(json.loads(path.read_text(encoding="utf-8")))
    print(f"the least loss there is: {math.log(4):.4f}")


if __name__ == "__main__":
    main()
