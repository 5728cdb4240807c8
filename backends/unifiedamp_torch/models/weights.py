"""The role that reads and writes true weights, by the names of ``state_dict``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from unifiedamp.backend import Weights

from ..device.arrays import like, whole
from ..layer_paths import plain_name
from . import optimizer_state
from .lazy_layers import refuse_lazy


class TrueWeights(Protocol):
    """Where the true weights of parameters are (see ``training.master_weights``)."""

    def read(self, param: torch.Tensor) -> torch.Tensor:
        """Return a parameter's true weights in float32, or complex64."""

    def write(self, param: torch.Tensor, values: torch.Tensor) -> None:
        """Set a parameter's true weights, and so the parameter."""


class TorchWeights(Weights):
    """Float32 arrays (complex64 for complex parameters); whole ones of what is sharded over processes, all of which
    must call.

    Args:
        true_weights: the session's.
    """

    means = "by the names of state_dict"

    def __init__(self, true_weights: TrueWeights) -> None:
        self._true_weights = true_weights

    def read(self, model: torch.nn.Module) -> dict[str, Any]:
        return {name: self._array(tensor) for name, tensor in _tensors(model)}

    def _array(self, tensor: torch.Tensor) -> Any:
        return whole(self._true_weights.read(tensor)).to("cpu", copy=True).numpy()

    def write(self, model: torch.nn.Module, weights: Mapping[str, Any]) -> None:
        for name, tensor in _tensors(model):
            self._true_weights.write(tensor, like(tensor, torch.from_numpy(weights[name])))

    def read_optimizer(
        self, optimizer: torch.optim.Optimizer, models: Sequence[torch.nn.Module]
    ) -> dict[str, Any] | None:
        return optimizer_state.read(optimizer)

    def check_optimizer(
        self, optimizer: torch.optim.Optimizer, models: Sequence[torch.nn.Module], state: Mapping[str, Any]
    ) -> None:
        optimizer_state.check(optimizer, state)

    def write_optimizer(
        self, optimizer: torch.optim.Optimizer, models: Sequence[torch.nn.Module], state: Mapping[str, Any]
    ) -> None:
        optimizer_state.write(optimizer, state)


def _tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    refuse_lazy(model, "weights cannot be read or set")
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, torch.Tensor) and (tensor.is_floating_point() or tensor.is_complex()):
            yield plain_name(name), tensor
