"""torch: ``torch.autocast``, and ``torch.amp.GradScaler`` for loss scaling."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from record import driver

DTYPES = {"mixed_float16": torch.float16, "mixed_bfloat16": torch.bfloat16}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

around = nullcontext


@functools.cache
def gpu() -> dict[str, Any] | None:
    if DEVICE == "cpu":
        return None
    facts = torch.cuda.get_device_properties(0)
    return {
        "name": facts.name,
        "compute_capability": f"{facts.major}.{facts.minor}",
        "memory_gib": round(facts.total_memory / 2**30),
        "driver": driver(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }


def low() -> str:
    return "mixed_float16" if DEVICE == "cuda" else "mixed_bfloat16"


def scope(policy: str = "") -> AbstractContextManager[Any]:
    """Create modules on the device."""
    return torch.device(DEVICE) if DEVICE == "cuda" else nullcontext()


def tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(array).to(DEVICE)


def begin() -> None:
    """Clear dynamo's cache: it stops recompiling a function after eight versions."""
    torch._dynamo.reset()


def clear() -> None:
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()


def finish() -> None:
    """Synchronize; CPU steps are synchronous."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def number(loss: torch.Tensor) -> float:
    return float(loss.detach())


def memory(run: Callable[[], Any]) -> dict[str, int]:
    """Return peak and held memory; held is what the allocator reserves after freeing the memory of compilation."""
    if DEVICE == "cpu":
        return {}
    peak = torch.cuda.max_memory_allocated()
    clear()
    torch.cuda.reset_peak_memory_stats()
    run()
    return {"peak": max(peak, torch.cuda.max_memory_allocated()), "held": torch.cuda.max_memory_reserved()}


def peak_of(run: Callable[[], Any]) -> int | None:
    """Return the peak bytes that ``run`` allocates on top of the current allocation."""
    if DEVICE == "cpu":
        return None
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    return torch.cuda.max_memory_allocated() - before


def plain_layout(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model in torch's default layout, channels first."""
    return model.to(memory_format=torch.contiguous_format)


zeroes_gradients = True
"""``optimizer.zero_grad(set_to_none=False)`` exists."""


def forward_of(model: Any, loss_fn: Any, policy: str) -> Callable[[Any, Any], torch.Tensor]:
    """Return the loss of a batch under a policy."""
    dtype = DTYPES.get(policy)

    def plain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loss_fn(model(x), y)

    def autocast(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, dtype):
            return loss_fn(model(x).float(), y)

    return autocast if dtype else plain


def train_step(
    model: Any, optimizer: Any, loss_fn: Any, scale: float | None, compiled: bool | str, policy: str = ""
) -> Callable[..., Any]:
    """``compiled=True`` compiles the step; a mode of ``torch.compile`` compiles only model and loss."""
    forward = forward_of(model, loss_fn, policy or low())
    if isinstance(compiled, str):
        forward = torch.compile(forward, mode=compiled)

    def plain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = forward(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    scaler = torch.amp.GradScaler(DEVICE, init_scale=scale or 1.0)

    def with_scale(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = forward(x, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss

    step = with_scale if scale else plain
    return torch.compile(step) if compiled is True else step
