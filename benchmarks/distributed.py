"""DDP and FSDP2 with unifiedamp, compared with hand-written native loops on the same ranks.

`python benchmarks/distributed.py [--ranks 2]` starts torchrun on this machine: NCCL where there is a GPU for each rank,
else gloo. All configurations of a row train in turns in one run; rank 0 writes
`benchmarks/results/distributed-torch.json` (`-gpu` on GPUs). Each rank has the whole batch of a recipe; every loop
clips gradients by their norm.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from native import torch_amp, torch_graph
from race import Standing
from recipes import DISTRIBUTED, Parts, tiny
from record import RESULTS, hardware, write_race
from timing import ratio_of, say
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import unifiedamp as ua

ROWS = (
    ("mlp 3x256, AdamW", "DDP", "mixed_float16"),
    ("ResNet-50 28", "DDP", "mixed_float16"),
    ("U-Net 128", "DDP", "mixed_float16"),
    ("GPT-2 small 1024", "DDP", "mixed_float16"),
    ("GPT-2 small 1024", "DDP", "mixed_bfloat16"),
    ("GPT-2 small 1024", "FSDP2", "mixed_float16"),
    ("GPT-2 small 1024", "FSDP2", "mixed_bfloat16"),
    ("GPT-2 small 1024, larger batch", "DDP", "mixed_bfloat16"),
    ("ResNet-50 224", "DDP", "mixed_float16"),
    ("4 blocks of Llama-3-8B", "FSDP2", "mixed_bfloat16"),
    ("4 blocks of Llama-3-8B", "FSDP2", "mixed_float8;layers=head:bfloat16"),
)
NATIVE, BY_HAND = "native AMP", "native AMP, captured by hand"
GATHERED = "ours max, float8_all_gather"
FORMS = (NATIVE, "native AMP + torch.compile", BY_HAND, "ours off", "ours default", "ours max", GATHERED)
"""Native AMP has no float8: beside a float8 policy it runs in bfloat16."""
WARM_UP, TURN_SECONDS = 16, 0.2
MAX_NORM = 1.0


@dataclass
class Case:
    """One recipe under one wrapper and policy.

    Attributes:
        name: the recipe's name.
        wrapper: "DDP" or "FSDP2".
        policy: the policy.
        parts: native objects and the batch of this rank.
    """

    name: str
    wrapper: str
    policy: str
    parts: Parts

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of native AMP."""
        return torch_amp.DTYPES.get(self.policy, torch.bfloat16)

    @property
    def float8(self) -> bool:
        """Whether the policy is one of float8."""
        return self.policy.startswith("mixed_float8")

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return this rank's batch; each rank has another one."""
        x, y = (torch_amp.tensor(np.roll(each, dist.get_rank())) for each in (self.parts.images, self.parts.labels))
        return x, y

    def wrapped(self, mp_policy: Any, compiled: bool = False) -> torch.nn.Module:
        """Return a new model that the ranks share."""
        with torch_amp.scope():
            model = self.parts.model()
        if self.wrapper == "DDP":
            ids = [torch.cuda.current_device()] if torch_amp.DEVICE == "cuda" else None
            return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)
        for block in getattr(model, "blocks", ()):
            if compiled:
                block.compile()
            fully_shard(block, mp_policy=mp_policy)
        return fully_shard(model, mp_policy=mp_policy)


def native(case: Case, compiled: bool, captured: bool = False) -> Callable[[], Any]:
    """Return the hand-written loop of torch's own AMP; ``captured``: for a CUDA graph."""
    mp_policy = MixedPrecisionPolicy(param_dtype=case.dtype, reduce_dtype=torch.float32)
    model = case.wrapped(mp_policy, compiled)
    optimizer = case.parts.optimizer(model)
    for group in optimizer.param_groups:
        group["capturable"] = captured
    forward = torch.compile(model) if compiled and case.wrapper == "DDP" else model
    half = case.policy == "mixed_float16"
    scaler = torch.amp.GradScaler(torch_amp.DEVICE, init_scale=case.parts.recipe.first_scale, enabled=half)
    x, y = case.batch()

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        # Inside a graph, casts of weights that autocast keeps would be those of the capture.
        with torch.autocast(torch_amp.DEVICE, case.dtype, case.wrapper == "DDP", cache_enabled=not captured):
            loss = case.parts.loss_fn(forward(x).float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


def ours(case: Case, mode: str, gathered: bool = False) -> Callable[[], Any]:
    """Return the same loop under a session; ``gathered``: weights of float8 layers are gathered in float8."""
    scale = case.parts.recipe.loss_scale(case.policy)
    policy = case.policy + ";emulate=true" * (case.float8 and torch_amp.DEVICE == "cpu")
    options = {"torch": {"float8_all_gather": True}} if gathered else None
    amp = ua.Amp("torch", policy, loss_scale=scale, compile=mode, device=_device(), backend_options=options)
    # What casts to float8 is autocast's, so FSDP2 gathers float32 weights, or float8 ones.
    model = case.wrapped(MixedPrecisionPolicy() if case.float8 else amp.mp_policy())
    model, optimizer = amp.prepare(model, case.parts.optimizer(model))
    x, y = case.batch()

    @amp.compile
    def train_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with amp.autocast():
            loss = case.parts.loss_fn(model(x), y)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        amp.clip_grad_norm(optimizer, MAX_NORM)
        amp.step(optimizer)
        return loss.detach()

    return lambda: train_step(x, y)


def applies(case: Case, form: str) -> bool:
    """Return whether a form is for a case on this device."""
    if form == BY_HAND:
        return torch_amp.DEVICE == "cuda" and not case.float8
    return form != GATHERED or case.float8


def made(case: Case, form: str) -> Callable[[], Any]:
    """Return the step of a form, by its name in ``FORMS``."""
    if form == BY_HAND:
        return torch_graph.captured(lambda: native(case, compiled=True, captured=True))
    if form.startswith("native"):
        return native(case, form != NATIVE)
    return ours(case, form.removeprefix("ours ").partition(",")[0], form == GATHERED)


# -- timing --------------------------------------------------------------------------------------------------------


def agreed(value: float) -> float:
    """Return rank 0's value."""
    box = torch.tensor([value], dtype=torch.float64, device=torch_amp.DEVICE)
    dist.broadcast(box, 0)
    return float(box)


def turn(step: Callable[[], Any], steps: int) -> float:
    """Return the seconds per step of some steps, begun and ended together."""
    torch_amp.finish()
    dist.barrier()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    torch_amp.finish()
    return (time.perf_counter() - start) / steps


@dataclass
class Warm:
    """A form that is built and warm.

    Attributes:
        step: runs one step.
        losses, memory, ready_s: see ``race.Standing``; the loss of this rank.
        steps: in a turn.
        times: seconds per step, of each turn.
    """

    step: Callable[[], Any]
    losses: tuple[float, float]
    memory: dict[str, int]
    ready_s: float
    steps: int
    times: list[float]


def warm(case: Case, form: str) -> Warm:
    """Build and warm a form."""
    torch_amp.clear()
    on_gpu = torch_amp.DEVICE == "cuda"
    before = torch.cuda.memory_allocated() if on_gpu else 0
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    step = made(case, form)
    first = float(step())
    for _ in range(WARM_UP):
        last = step()
    torch_amp.finish()
    ready = time.perf_counter() - begun
    took = turn(step, 3)
    memory = {"peak": torch.cuda.max_memory_allocated() - before} if on_gpu else {}
    steps = int(agreed(max(1, round(TURN_SECONDS / took))))
    return Warm(step, (first, float(last)), memory, round(ready, 1), steps, [])


def measure(case: Case, forms: Sequence[str], options: argparse.Namespace) -> Iterator[Standing]:
    """Yield the rows of one case."""
    torch_amp.begin()
    forms = [form for form in forms if applies(case, form)]
    found: dict[str, Warm] = {}
    failed: dict[str, str] = {}
    for form in forms:
        try:
            found[form] = warm(case, form)
            say(f"{case.name}, {case.wrapper}, {case.policy}, {form}: ready in {found[form].ready_s} s")
        except Exception as error:
            failed[form] = f"{type(error).__name__}: {error}".partition("\n")[0]
            say(f"{case.name}, {case.wrapper}, {case.policy}, {form}: {failed[form]}")
    began = time.perf_counter()
    for _ in range(options.rounds):
        for each in found.values():
            each.times.append(turn(each.step, each.steps))
        if agreed(time.perf_counter() - began) > options.seconds:
            break
    for form in forms:
        labels = {
            "recipe": case.name, "wrapper": case.wrapper, "policy": case.policy,
            "batch per rank": str(case.parts.recipe.batch), "configuration": form,
        }  # fmt: skip
        yield Standing(labels, failed=failed[form]) if form in failed else standing(case, labels, found[form], found)


def standing(case: Case, labels: dict[str, str], own: Warm, found: dict[str, Warm]) -> Standing:
    """Return the row of one form."""
    seconds = float(np.median(own.times))
    rate = case.parts.recipe.per_step * dist.get_world_size() / seconds
    ratios = {NATIVE: ratio_of(own.times, found[NATIVE].times)} if NATIVE in found else {}
    say(f"{', '.join(labels.values())}: {seconds * 1e3:.3f} ms, {[round(1 / r[0], 3) for r in ratios.values()]}")
    return Standing(
        labels, seconds * 1e3, rate, f"{case.parts.recipe.unit}/s", ratios, own.memory, own.losses, own.ready_s,
        len(own.times), own.steps,
    )  # fmt: skip


def measure_all(options: argparse.Namespace) -> None:
    """Measure every requested row on this rank."""
    warnings.simplefilter("ignore")
    before = {**hardware(torch_amp.gpu()), "ranks": dist.get_world_size(), "backend": dist.get_backend()}
    device = before["gpu"]["name"] if torch_amp.gpu() else "CPU"
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"distributed-torch{'-gpu' if torch_amp.gpu() else ''}.json"
    rows: list[Standing] = []
    for number in options.rows or range(len(ROWS)):
        name, wrapper, policy = ROWS[number]
        recipe = tiny(DISTRIBUTED[name]) if options.smoke else DISTRIBUTED[name]
        for row in measure(Case(name, wrapper, policy, Parts("torch", recipe)), options.forms, options):
            rows.append(row)
        gc.collect()
        if dist.get_rank() == 0:
            title = f"torch: {dist.get_world_size()} rank{'s' * (dist.get_world_size() > 1)}, {device}"
            write_race(path, title, [NATIVE], "speed", before, rows)


def _device() -> str:
    return f"cuda:{torch.cuda.current_device()}" if torch_amp.DEVICE == "cuda" else "cpu"


@contextlib.contextmanager
def joined() -> Iterator[None]:
    """Join the ranks that torchrun started."""
    if torch_amp.DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch_amp.DEVICE == "cuda" else "gloo", timeout=timedelta(minutes=3))
    if dist.get_rank():
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # until the process ends
    try:
        yield
    finally:
        dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2, help="processes on this machine (default: %(default)s)")
    rows = "; ".join(f"{index}: {', '.join(row)}" for index, row in enumerate(ROWS))
    parser.add_argument("--rows", type=int, nargs="+", help=f"rows by number ({rows})")
    parser.add_argument("--forms", nargs="+", default=FORMS, choices=FORMS)
    parser.add_argument("--rounds", type=int, default=40, help="rounds of one turn each (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="time limit of a row's rounds")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smoke", action="store_true", help="tiny models, to test the script; needs --out")
    options = parser.parse_args()
    if options.smoke and options.out == RESULTS:
        parser.error("--smoke measures nothing useful: pass another folder as --out")
    if "LOCAL_RANK" in os.environ:
        with joined():
            measure_all(options)
        return 0
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.ranks}"]
    return subprocess.run([sys.executable, *launch, __file__, *sys.argv[1:]], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
