"""The models of the conformance suite, in plain torch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn


class Probe(nn.Module):
    """``sum(w_i * x_i)``, so that the gradient of ``w_i`` is ``x_i``."""

    def __init__(self, values: Sequence[float]) -> None:
        super().__init__()
        for index, value in enumerate(values):
            self.register_parameter(f"w{index}", nn.Parameter(torch.tensor([value], dtype=torch.float32)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the float32 scalar."""
        return torch.sum(torch.cat([param.float() for param in self.parameters()]) * x.float())


class ComplexProbe(nn.Module):
    """``sum(real(w_i) * x_2i + imag(w_i) * x_2i+1)``."""

    def __init__(self, values: Sequence[complex]) -> None:
        super().__init__()
        for index, value in enumerate(values):
            self.register_parameter(f"w{index}", nn.Parameter(torch.tensor([value], dtype=torch.complex64)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the float32 scalar."""
        return torch.sum(torch.view_as_real(torch.cat(list(self.parameters()))).flatten() * x.float())


class Structured(nn.Module):
    """A dense layer's output, and a list of twice that and the place of each row's largest."""

    def __init__(self, dense: nn.Linear) -> None:
        super().__init__()
        self.dense = dense

    def forward(self, x: torch.Tensor) -> Any:
        """Return the structure."""
        output = self.dense(x)
        return output, [2 * output, torch.argmax(output, -1)]


class Doubled(NamedTuple):
    """Twice an output, and the place of each row's largest."""

    double: torch.Tensor
    place: torch.Tensor


class Mapped(nn.Module):
    """A dense layer's output in a dict, with a named tuple."""

    def __init__(self, dense: nn.Linear) -> None:
        super().__init__()
        self.dense = dense

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        """Return the dict."""
        output = self.dense(x)
        return OrderedDict(output=output, pair=Doubled(2 * output, torch.argmax(output, -1)))


class Attention(nn.Module):
    """Self-attention without biases."""

    def __init__(self, projections: Sequence[NDArray[Any]], heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = map(_projection, projections)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs, of the shape of the inputs."""
        split = [
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        ]
        attended = nn.functional.scaled_dot_product_attention(*split)
        output: torch.Tensor = self.output(attended.transpose(1, 2).flatten(2))
        return output


def _projection(weight: NDArray[Any]) -> nn.Linear:
    layer = nn.Linear(weight.shape[0], weight.shape[1], bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.asarray(weight, np.float32).T.copy()))
    return layer


class Residual(nn.Module):
    """A dense layer's output plus its input."""

    def __init__(self, dense: nn.Linear) -> None:
        super().__init__()
        self.dense = dense

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum."""
        output: torch.Tensor = self.dense(x) + x
        return output


class Product(nn.Module):
    """Multiplies its inputs."""

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Return the product."""
        return left * right


class Joined(nn.Module):
    """Two dense layers over one input, and a layer that takes the outputs of both."""

    def __init__(self, left: nn.Linear, right: nn.Linear) -> None:
        super().__init__()
        self.left, self.right, self.join = left, right, Product()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the last layer does."""
        output: torch.Tensor = self.join(self.left(x), self.right(x))
        return output


class Kept(nn.Module):
    """A dense layer outside autocast."""

    def __init__(self, dense: nn.Linear) -> None:
        super().__init__()
        self.dense = dense

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output."""
        with torch.autocast(x.device.type, enabled=False):
            output: torch.Tensor = self.dense(x.float())
        return output


def linear(weight: NDArray[Any], bias: NDArray[Any], dtype: torch.dtype) -> nn.Linear:
    """Return a layer with this (inputs, outputs) weight and bias."""
    inputs, outputs = weight.shape
    layer = nn.Linear(inputs, outputs, dtype=dtype)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight.T.copy()))
        layer.bias.copy_(torch.from_numpy(bias))
    return layer


class Picked(nn.Module):
    """The sum of the rows picked, of a table whose gradient is sparse."""

    def __init__(self, table: NDArray[Any]) -> None:
        super().__init__()
        rows, columns = table.shape
        self.table = nn.Embedding(rows, columns, sparse=True, _weight=torch.tensor(table))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the float32 scalar."""
        return torch.sum(self.table(rows))


class Mlp(nn.Module):
    """Dense layers with ReLU between."""

    def __init__(self, weights: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> None:
        super().__init__()
        self.depth = len(weights)
        for index, (weight, bias) in enumerate(weights):
            inputs, outputs = weight.shape
            layer = nn.Linear(inputs, outputs)
            with torch.no_grad():
                layer.weight.copy_(torch.from_numpy(np.asarray(weight, np.float32).T.copy()))
                layer.bias.copy_(torch.from_numpy(np.asarray(bias, np.float32)))
            self.add_module(f"layer{index}", layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the last layer's output."""
        for index in range(self.depth):
            x = self.get_submodule(f"layer{index}")(x)
            if index + 1 < self.depth:
                x = torch.relu(x)
        return x


class Ratio(nn.Module):
    """Divides each row by the sum of its absolute values."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return rows of sum 1."""
        return x / (x.abs().sum(-1, keepdim=True) + self.epsilon)


class ConvNet(nn.Module):
    """Convolution, batch norm, ReLU, dense; for (batch, 1, 8, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8 * 8 * 8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        logits: torch.Tensor = self.head(torch.relu(self.norm(self.conv(x))).flatten(1))
        return logits
