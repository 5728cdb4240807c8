"""Autocast regions: ``torch.autocast``, made once per session and entered as often as wanted."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch


class _Entered(threading.local):
    """The native regions that this thread is in, innermost last."""

    def __init__(self) -> None:
        self.stack: list[torch.autocast] = []


_entered = _Entered()


class Region(torch.autocast):
    """A ``torch.autocast`` that may be entered while it is entered already, and by several threads.

    A native region keeps what it found in its own attributes, so entering it twice loses that. This one enters a
    spare native region each time. It stays a ``torch.autocast``, which is what lets torch.compile trace through it.

    Args:
        device_type: "cpu", "cuda", ….
        dtype: the dtype that matrix products and convolutions run in; None makes a region without autocast.
        cache_enabled: keep the casts of parameters until the outermost region is left.
    """

    def __init__(self, device_type: str, dtype: torch.dtype | None, cache_enabled: bool) -> None:
        self._native = {
            "device_type": device_type, "dtype": dtype, "enabled": dtype is not None, "cache_enabled": cache_enabled
        }  # fmt: skip
        super().__init__(**self._native)
        self._spare: list[torch.autocast] = []

    def __enter__(self) -> Region:
        native = self._spare.pop() if self._spare else torch.autocast(**self._native)
        native.__enter__()
        _entered.stack.append(native)
        return self

    def __exit__(self, *error: Any) -> None:
        native = _entered.stack.pop()
        native.__exit__(*error)
        self._spare.append(native)


class Inference:
    """A region without gradients, with models in evaluation mode; each module's own mode is put back.

    Gradients are turned off by ``no_grad``: tensors made in ``inference_mode`` would poison later training through
    autocast's cache of casts, which is off in here for the same reason.
    """

    def __init__(self, region: Any, models: Sequence[torch.nn.Module]) -> None:
        self._region = region
        self._models = models
        self._training: list[torch.nn.Module] = []

    def __enter__(self) -> None:
        self._training = [module for model in self._models for module in model.modules() if module.training]
        for model in self._models:
            model.eval()
        self._had_grad = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        self._region.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._region.__exit__(*error)
        torch.set_grad_enabled(self._had_grad)
        for module in self._training:
            module.training = True
