"""Step time and loss of mixed_float8 compared with mixed_bfloat16 on a stack of transformer blocks.

`python benchmarks/fp8.py --loss-steps 500` needs torch and a GPU with float8; it prints a table and writes
`benchmarks/results/fp8-torch.json`. `--smoke --out FOLDER` runs small sizes with float8 emulated, on any machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from blocks import SMOKE, Chain, Sizes, Stack, loss_fn
from native.torch_amp import gpu
from record import RESULTS, hardware, show, write
from timing import Comparison, Loop, compare

import unifiedamp as ua

POLICIES = ("mixed_float8", "mixed_bfloat16")
LAST = 20
"""Losses are compared as the mean over the last ``LAST`` steps."""


def session(policy: str, emulate: bool) -> ua.Amp:
    """Return a session; the head stays in bfloat16, as is usual."""
    if policy != "mixed_float8":
        return ua.Amp("torch", policy)
    options = {"torch": {"emulate": True}} if emulate else None
    return ua.Amp(
        "torch", ua.Policy.parse(policy).replace(layer_overrides={"head": "bfloat16"}), backend_options=options
    )


def trained(policy: str, form: str, options: Any) -> tuple[ua.Amp, Callable[[Any, Any], Any]]:
    """Return a session and its training step; all start with the same weights."""
    amp = session(policy, options.smoke)
    torch.manual_seed(0)
    with amp.scope():
        model = Stack(options.sizes)
        optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, fused=True)
    model, optimizer = amp.prepare(model, optimizer)

    def step(tokens: Any, targets: Any) -> Any:
        with amp.autocast():
            loss = loss_fn(model(tokens), targets)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        amp.step(optimizer)
        return loss

    return amp, amp.compile(step, mode=form)


def final_loss(run: tuple[ua.Amp, Callable[[Any, Any], Any]], options: Any) -> float:
    """Train for ``options.loss_steps`` and return the mean loss of the last steps."""
    amp, step = run
    losses = [step(*batch).detach().clone() for batch in batches(amp, options)]
    return float(torch.stack(losses[-LAST:]).float().mean())


def batches(amp: ua.Amp, options: Any) -> Iterator[tuple[Any, Any]]:
    """Yield a new batch for each step (a model this large memorizes batches); the same ones in each run."""
    chain = Chain(options.sizes)
    made = [[amp.to_native(part) for part in chain.batch()] for _ in range(options.loss_steps)]
    yield from ((tokens, targets) for tokens, targets in made)


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


def measure(form: str, options: Any) -> Comparison:
    """Measure one row: first the losses, if requested, one after the other; then the alternating step times."""
    runs = [trained(policy, form, options) for policy in POLICIES]
    loss = "not measured"
    if options.loss_steps:
        low, high = (final_loss(run, options) for run in runs)
        loss = f"{low:.4f} / {high:.4f} = {low / high:.4f}"
    sizes = options.sizes
    labels = {
        "blocks × width": f"{sizes.blocks} × {sizes.width}",
        "batch × length": f"{sizes.batch} × {sizes.length}",
        "amp.compile": form,
        f"loss after {options.loss_steps} steps": loss,
    }
    row = compare(labels, *(loop(run, options) for run in runs), options.pairs)
    runs.clear()
    forget()
    return row


def parse() -> Any:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="small sizes, float8 emulated")
    parser.add_argument("--pairs", type=int, help="pairs of turns (default: 30; with --smoke 2)")
    parser.add_argument("--forms", nargs="+", choices=("off", "default", "max"), help="modes of amp.compile")
    parser.add_argument("--loss-steps", type=int, default=0, help="steps of the loss comparison (default: none)")
    parser.add_argument("--lr", type=float, help="AdamW's learning rate (default: 1e-4; with --smoke 3e-3)")
    for name, value in vars(Sizes()).items():
        parser.add_argument(f"--{name}", type=int, help=f"(default: {value})")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON file (default: %(default)s)")
    options = parser.parse_args()
    if options.smoke and options.out == RESULTS:
        parser.error("--smoke measures nothing useful: pass --out")
    base = vars(SMOKE if options.smoke else Sizes())
    options.sizes = Sizes(**{name: getattr(options, name) or value for name, value in base.items()})
    options.pairs = options.pairs or (2 if options.smoke else 30)
    options.lr = options.lr or (3e-3 if options.smoke else 1e-4)
    options.forms = options.forms or (["off"] if options.smoke else ["default", "max"])
    return options


def main() -> None:
    """Measure and write."""
    options = parse()
    before = hardware(gpu())
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "fp8-torch.json"
    how = "emulated, not to be compared" if options.smoke else (gpu() or {}).get("name", "cpu")
    rows: list[Comparison] = []
    for form in options.forms:
        rows.append(measure(form, options))
        write(path, f"torch: step time, mixed_float8 over mixed_bfloat16 ({how})", POLICIES, before, rows)
    show(json.loads(path.read_text(encoding="utf-8")))
    print(f"the least loss there is: {math.log(4):.4f}")


if __name__ == "__main__":
    main()
