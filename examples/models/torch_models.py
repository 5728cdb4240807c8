"""The recipe's models in PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from unifiedamp.workloads.training.state import check_fits

from . import resnet
from .neutral import (
    NORM_EPSILON,
    NORM_KEEP,
    Weights,
    conv_sizes,
    dense_sizes,
    first_weights,
    from_channels_first,
    numbered,
    to_channels_first,
)
from .torch_resnet import ResNet

IMAGE_AXES = (0, 3, 1, 2)
KINDS = {nn.Conv2d: "conv", nn.BatchNorm2d: "norm", nn.Linear: "dense"}
FIELDS = {
    "conv": {"kernel": "weight"},
    "norm": {"gamma": "weight", "beta": "bias", "mean": "running_mean", "variance": "running_var"},
    "dense": {"kernel": "weight", "bias": "bias"},
}


def make_model(name: str, shape: Sequence[int], classes: int, seed: int, width: int = resnet.WIDTH) -> nn.Module:
    """Return the ``conv``, ``mlp`` or ``resnet50`` model with its initial weights; ``width`` is for ``resnet50``."""
    dense = [nn.Linear(*size) for size in dense_sizes(name, shape, classes, width)]
    if name == "resnet50":
        model = _resnet(shape[-1], width, classes)
    else:
        model = _conv(conv_sizes(name, shape), dense) if name == "conv" else _mlp(dense)
    import_weights(model, first_weights(name, shape, classes, seed, width))
    return model


def _resnet(channels: int, width: int, classes: int) -> nn.Module:
    model = ResNet(resnet.BLOCKS, width, classes, channels, small_images=True, norm=_norm)
    return model.to(memory_format=torch.channels_last)


def _norm(channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels, eps=NORM_EPSILON, momentum=1 - NORM_KEEP)


def _conv(sizes: Sequence[tuple[int, int]], dense: Sequence[nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in sizes:
        if layers:
            layers.append(nn.AvgPool2d(2))
        layers += [
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            _norm(outputs),
            nn.ReLU(),
        ]
    # Channels last is faster in low precision, on CPUs and GPUs.
    return nn.Sequential(*layers, nn.Flatten(), *dense).to(memory_format=torch.channels_last)


def _mlp(dense: Sequence[nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten(), dense[0]]
    for layer in dense[1:]:
        layers += [nn.ReLU(), layer]
    return nn.Sequential(*layers)


def make_optimizer(model: nn.Module, learning_rate: float, momentum: float) -> torch.optim.Optimizer:
    """Return fused SGD, so that a step never synchronizes."""
    return torch.optim.SGD(model.parameters(), learning_rate, momentum, fused=True)


def loss_fn(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of (n, classes) against (n,) labels."""
    return nn.functional.cross_entropy(logits, labels.long())


def export_weights(model: nn.Module, true: Weights | None = None) -> Weights:
    """Return the weights with neutral names and layouts.

    Args:
        model: one of this module's.
        true: the result of ``amp.master_weights(model)``, exported instead of the model's values.
    """
    found = dict(_tensors(model))
    if true is not None:
        found = {name: torch.from_numpy(true[native]) for name, native in _native_names(model)}
    return {name: _to_neutral(model, name, tensor).astype(np.float32) for name, tensor in found.items()}


def import_weights(model: nn.Module, weights: Weights, true: dict[str, Any] | None = None) -> None:
    """Set the weights from neutral names and layouts.

    Args:
        model: one of this module's.
        weights: weights with neutral names and layouts.
        true: the result of ``amp.master_weights(model)``; overwritten instead of the model's values, for
            ``amp.load_master_weights``.
    """
    tensors = dict(_tensors(model))
    check_fits(weights, {name: _to_neutral(model, name, tensor).shape for name, tensor in tensors.items()})
    if true is not None:
        for name, native in _native_names(model):
            true[native] = _from_neutral(model, name, weights[name]).numpy()
        return
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(_from_neutral(model, name, weights[name]))


def export_momentum(model: nn.Module, optimizer: torch.optim.Optimizer) -> Weights:
    """Return the momentum in units of a gradient; zeros before the first step."""
    found = {}
    of_optimizer = _of_optimizer(model, optimizer)
    for name, tensor in _trained(model):
        buffer = optimizer.state.get(of_optimizer[tensor], {}).get("momentum_buffer")
        found[name] = _to_neutral(model, name, torch.zeros_like(tensor) if buffer is None else buffer)
    return found


def import_momentum(model: nn.Module, optimizer: torch.optim.Optimizer, momentum: Weights) -> None:
    """Set the momentum from neutral names and layouts."""
    trained = dict(_trained(model))
    check_fits(momentum, {name: _to_neutral(model, name, tensor).shape for name, tensor in trained.items()})
    of_optimizer = _of_optimizer(model, optimizer)
    for name, tensor in trained.items():
        held = of_optimizer[tensor]
        buffer = torch.empty_like(held, requires_grad=False)
        optimizer.state[held]["momentum_buffer"] = buffer.copy_(_from_neutral(model, name, momentum[name]))


def _tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for layer_name, layer in numbered(model.modules(), KINDS):
        for field, attribute in FIELDS[layer_name.rstrip("0123456789")].items():
            yield f"{layer_name}/{field}", getattr(layer, attribute)


def _trained(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    return ((name, tensor) for name, tensor in _tensors(model) if isinstance(tensor, nn.Parameter))


def _of_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[nn.Parameter, torch.Tensor]:
    """Return parameter → the tensor that the optimizer trains: the parameter, or its master weight."""
    return dict(zip(model.parameters(), optimizer.param_groups[0]["params"], strict=True))


def _native_names(model: nn.Module) -> Iterator[tuple[str, str]]:
    native = {id(tensor): name for name, tensor in model.state_dict(keep_vars=True).items()}
    return ((name, native[id(tensor)]) for name, tensor in _tensors(model))


def _channels(model: nn.Module) -> int:
    return [1, *(layer.out_channels for layer in model.modules() if isinstance(layer, nn.Conv2d))][-1]


def _to_neutral(model: nn.Module, name: str, tensor: torch.Tensor) -> Any:
    array = tensor.detach().to("cpu", torch.float32).numpy()
    return np.array(from_channels_first(name, array, _channels(model)), np.float64, order="C")


def _from_neutral(model: nn.Module, name: str, array: Any) -> torch.Tensor:
    return torch.from_numpy(to_channels_first(name, array, _channels(model)))


def download_fashion_mnist(folder: Path) -> tuple[Any, Any, Any, Any]:
    """Return training images and labels, test images and labels, with torchvision's downloader."""
    from torchvision.datasets import FashionMNIST

    parts = [FashionMNIST(str(folder), train=train, download=True) for train in (True, False)]
    return tuple(array.numpy() for part in parts for array in (part.data, part.targets))  # type: ignore[return-value]
