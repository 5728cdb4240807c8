"""16-bit training without float32 copies: time of an update and of a step, memory, and loss, against float32 masters.

`python benchmarks/updates.py --model llama` needs torch and a GPU; it prints tables and writes
`benchmarks/results/updates-torch.json` (the update alone, and the whole step with what each row takes in memory).
`--loss-steps 5000` trains each before, on new batches. `--smoke --out FOLDER` runs small sizes on any machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import fp8
import torch
from blocks import Stack, training_step
from native.torch_amp import gpu, scope
from record import hardware, show, write
from timing import Comparison, Loop, compare

import unifiedamp as ua

MASTERS = "bfloat16, float32 masters"
POLICIES = (
    "bfloat16;update=kahan", "bfloat16;update=stochastic", "bfloat16;update=kahan;state_dtype=bfloat16",
    "bfloat16;update=stochastic;state_dtype=bfloat16", "bfloat16;update=kahan;state_dtype=float8",
    "mixed_bfloat16;state_dtype=bfloat16",
)  # fmt: skip


def trained(policy: str, form: str, options: Any) -> tuple[ua.Amp, Any, Callable[[Any, Any], Any]]:
    """Return a session, its optimizer and its training step; all start with the same weights."""
    masters = policy == MASTERS
    amp = ua.Amp("torch", "bfloat16" if masters else policy, master_weights=masters)
    torch.manual_seed(0)
    with amp.scope():
        model = Stack(options.sizes)
        optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, fused=True)
    model, optimizer = amp.prepare(model, optimizer)
    return amp, optimizer, amp.compile(training_step(amp, model, optimizer), mode=form)


def update_of(policy: str, options: Any) -> Callable[[], Any]:
    """Return the update alone, on fixed gradients: the device's, or fused AdamW on float32 parameters."""
    if policy == MASTERS:
        with scope():
            model = Stack(options.sizes)
        optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, fused=True, capturable=True)
        set_gradients(optimizer)
        return captured(optimizer.step)
    amp, optimizer, step = trained(policy, "off", options)
    tokens, targets = next(batches(amp, options, 1))
    for _ in range(2):
        step(tokens, targets)
    set_gradients(optimizer)
    update = amp.backend.weight_updates._prepared.updates.device_update(optimizer, False)
    assert update is not None, "the host rounds these updates"
    return captured(lambda: update(None))


def set_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Give each parameter a gradient."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = torch.full_like(param, 1e-3)


def captured(fn: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function as a CUDA graph, so that launches cost nothing; on a CPU as it is."""
    if not torch.cuda.is_available():
        return fn
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            fn()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            fn()
    return graph.replay


def batches(amp: ua.Amp, options: Any, count: int) -> Iterator[tuple[Any, Any]]:
    """Yield new batches; the same ones in each run."""
    for batch in fp8.drawn(options.sizes, count):
        tokens, targets = (amp.to_native(part) for part in batch)
        yield tokens, targets


def final_loss(policy: str, form: str, options: Any) -> float:
    """Train for ``options.loss_steps`` and return the mean loss of the last steps."""
    amp, _, step = trained(policy, form, options)
    losses = [step(*batch).detach().float().clone() for batch in batches(amp, options, options.loss_steps)]
    fp8.forget()
    return float(torch.stack(losses[-fp8.LAST :]).mean())


def gibibytes(policy: str, options: Any) -> float:
    """Return the most memory that three uncaptured steps allocate, GiB; 0 without a GPU."""
    if not torch.cuda.is_available():
        return 0.0
    fp8.forget()
    torch.cuda.reset_peak_memory_stats()
    amp, _, step = trained(policy, "off", options)
    for batch in batches(amp, options, 3):
        step(*batch)
    return float(torch.cuda.max_memory_allocated() / 2**30)


def main() -> None:
    """Measure and write."""
    parser = fp8.arguments()
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=POLICIES, help="(default: all)")
    options = fp8.parse(parser)
    before = hardware(gpu())
    options.out.mkdir(parents=True, exist_ok=True)
    path, rows = options.out / "updates-torch.json", list[Comparison]()
    how = "not to be compared" if options.smoke else (gpu() or {}).get("name", "cpu")
    losses: dict[tuple[str, str], float] = {}
    memory = {policy: gibibytes(policy, options) for policy in (MASTERS, *options.policies)}

    def add(row: Comparison) -> None:
        rows.append(row)
        fp8.forget()
        write(path, f"torch: update and step over float32 masters ({how})", ("policy", MASTERS), before, rows)

    for policy in options.policies:
        if "float8" not in policy:
            updates = [Loop(update_of(each, options), fp8.finish) for each in (policy, MASTERS)]
            labels = {"policy": policy, "of": "the update alone", "GiB": ""}
            labels |= {f"loss after {options.loss_steps} steps": ""} if options.loss_steps else {}
            add(compare(labels, *updates, options.pairs))
            updates.clear()
        for form in options.forms:
            labels = {"policy": policy, "of": f"a step, amp.compile={form}"}
            labels["GiB"] = f"{memory[policy]:.2f} / {memory[MASTERS]:.2f}"
            if options.loss_steps:
                for each in (policy, MASTERS):
                    if (each, form) not in losses:
                        losses[each, form] = final_loss(each, form, options)
                low, high = losses[policy, form], losses[MASTERS, form]
                labels[f"loss after {options.loss_steps} steps"] = f"{low:.4f} / {high:.4f} = {low / high:.4f}"
            runs = [trained(each, form, options) for each in (policy, MASTERS)]
            loops = [fp8.loop((amp, step), options) for amp, _, step in runs]
            add(compare(labels, *loops, options.pairs))
            runs.clear()
            loops.clear()
    show(json.loads(path.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
