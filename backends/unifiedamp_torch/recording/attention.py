"""Where attention runs while a step is counted: the operands, results and gradients of its two products."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch

from unifiedamp.backend import forecast

from ..layer_paths import plain_name
from ..patches import replace_attention
from .step_recorder import in_training


class Counts(Protocol):
    """``forecaster.LayerCounts``."""

    work: int

    def add(self, name: str, tensor: torch.Tensor, inverse: torch.Tensor | None = None) -> None:
        """Count a tensor's values."""


class AttentionCounter:
    """Counts calls of ``torch.nn.functional.scaled_dot_product_attention``, by the innermost module that runs.

    Args:
        layer: returns the counts of a module, given its path, the module, and whether it holds others.
        inverse: returns the inverse of the loss scale; None without one.
    """

    def __init__(
        self,
        layer: Callable[[str, torch.nn.Module, bool], Counts],
        inverse: Callable[[], torch.Tensor | None],
    ) -> None:
        self._layer, self._inverse = layer, inverse
        self._running: list[tuple[str, torch.nn.Module]] = []
        self._undo: list[Callable[[], None]] = [replace_attention(self._attention)]

    def follow(self, prefix: str, model: torch.nn.Module) -> None:
        """Know which module of a model runs; ``prefix``: of the paths."""
        for path, module in model.named_modules():
            name = f"{prefix}{plain_name(path)}".rstrip(".")
            self._undo.append(module.register_forward_pre_hook(functools.partial(self._enter, name)).remove)
            self._undo.append(module.register_forward_hook(self._leave, always_call=True).remove)

    def _enter(self, path: str, module: torch.nn.Module, _: Any) -> None:
        self._running.append((path, module))

    def _leave(self, *_: Any) -> None:
        if self._running:  # a hook before this one may have raised
            self._running.pop()

    def stop(self) -> None:
        """Count no more."""
        while self._undo:
            self._undo.pop()()

    def _attention(self, native: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._running or not in_training(self._running[-1][1]):
            return native(query, key, value, *args, **kwargs)
        path, module = self._running[-1]
        layer = self._layer(path, module, next(module.children(), None) is not None)
        operands = [self._operand(layer, *each) for each in zip(forecast.ATTENTION, (query, key, value), strict=True)]
        output = native(*operands, *args, **kwargs)
        rows = query.numel() // max(query.shape[-1], 1)
        layer.work += rows * key.shape[-2] * (query.shape[-1] + value.shape[-1])
        layer.add("output", output)
        self._listen(layer, "gradient", output)
        return output

    def _operand(self, layer: Counts, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Count an operand; return what stands for it, whose gradient is that of the attention alone."""
        layer.add(name, tensor)
        alone = tensor.view_as(tensor) if tensor.requires_grad else tensor
        self._listen(layer, f"{name}_gradient", alone)
        return alone

    def _listen(self, layer: Counts, name: str, tensor: torch.Tensor) -> None:
        if tensor.requires_grad:
            listen: Any = tensor.register_hook
            listen(lambda gradient: layer.add(name, gradient, self._inverse()))
