"""A small model, and the loop, for torch's own tests."""

from __future__ import annotations

import copy
import io
from dataclasses import replace
from typing import Any

import torch

import unifiedamp as ua
from unifiedamp_torch.device import kinds


def mlp(seed: int = 0, norm: bool = False) -> torch.nn.Module:
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(8, 16), torch.nn.LayerNorm(16) if norm else torch.nn.Identity(), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(16, 4))


def batch(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(32, 8, generator=generator), torch.randint(0, 4, (32,), generator=generator)


def session(policy: Any = "float32", **options: Any) -> ua.Amp:
    return ua.Amp("torch", policy, device="cpu", **options)


def pretend_reads_sync(monkeypatch: Any) -> None:
    """Make sessions on the CPU keep the loss scale on the device, as where reading it synchronizes."""
    monkeypatch.setitem(kinds.TRAITS, "cpu", replace(kinds.TRAITS["cpu"], reads_without_sync=False))


def make_step(amp: ua.Amp, model: Any, optimizer: Any, clip: float | None = None) -> Any:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with amp.autocast():
            loss = torch.nn.functional.cross_entropy(model(x), y)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        if clip is not None:
            amp.clip_grad_norm(optimizer, clip)
        amp.step(optimizer)
        return loss

    return step


def check_copies(amp: ua.Amp, model: torch.nn.Module, layer: int, x: torch.Tensor) -> None:
    """A deep copy and a pickled one answer as the model does, and have weights of their own."""
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        with amp.autocast():
            assert torch.equal(other(x), model(x))
        with torch.no_grad():
            other[layer].weight.zero_()
        with amp.autocast():
            assert not torch.equal(other(x), model(x))


def weights(model: torch.nn.Module) -> list[torch.Tensor]:
    return [param.detach().clone() for param in model.parameters()]
