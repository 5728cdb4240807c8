"""The example's models and their training in numpy's float64: forward, backward and SGD, written out."""

from __future__ import annotations

from typing import Any

import numpy as np

from examples.models.neutral import NORM_EPSILON, NORM_KEEP


def patches(x: Any, size: int, stride: int) -> Any:
    """(n, h, w, c) -> (n, h / stride, w / stride, size, size, c): pixels' neighbourhoods, zeros around the image."""
    edge = size // 2
    padded = np.pad(x, ((0, 0), (edge, edge), (edge, edge), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size), (1, 2))
    return windows[:, ::stride, ::stride].transpose(0, 1, 2, 4, 5, 3)


def scattered(patches: Any, shape: tuple[int, ...], stride: int) -> Any:
    """Add each patch to where it was taken from: the transpose of ``patches``."""
    (n, h, w, c), size = shape, patches.shape[3]
    edge = size // 2
    padded = np.zeros((n, h + 2 * edge, w + 2 * edge, c))
    for i in range(size):
        for j in range(size):
            rows, columns = (
                slice(i, i + stride * patches.shape[1], stride),
                slice(j, j + stride * patches.shape[2], stride),
            )
            padded[:, rows, columns] += patches[:, :, :, i, j]
    return padded[:, edge : edge + h, edge : edge + w]


class Oracle:
    """Trains ``weights`` (neutral names) in place; ``step`` returns the loss before the update."""

    def __init__(self, weights: dict[str, Any], learning_rate: float, momentum: float) -> None:
        self.w = {name: value.astype(np.float64) for name, value in weights.items()}
        self.v = {name: np.zeros_like(value) for name, value in self.w.items()}
        self.rate, self.momentum = learning_rate, momentum
        self.convs = sum(name.startswith("conv") for name in weights)
        self.denses = sum(name.startswith("dense") for name in weights) // 2

    def step(self, x: Any, y: Any) -> float:
        self.g: dict[str, Any] = {}
        self.back: list[Any] = []
        x = self.flatten(self.body(x.astype(np.float64)))
        for i in range(1, self.denses + 1):
            x = self.dense(f"dense{i}", x if i == 1 else self.relu(x))
        loss, d = self.cross_entropy(x, y)
        for backward in reversed(self.back):
            d = backward(d)
        for name, gradient in self.g.items():
            self.v[name] = self.momentum * self.v[name] + gradient
            self.w[name] -= self.rate * self.v[name]
        return loss

    def body(self, x: Any) -> Any:
        for i in range(1, self.convs + 1):
            x = self.relu(self.norm(f"norm{i}", self.conv(f"conv{i}", x if i == 1 else self.pool(x))))
        return x

    def conv(self, name: str, x: Any, stride: int = 1) -> Any:
        kernel = self.w[f"{name}/kernel"].copy()
        seen = patches(x, len(kernel), stride)

        def backward(d: Any) -> Any:
            self.g[f"{name}/kernel"] = np.tensordot(seen, d, ((0, 1, 2), (0, 1, 2)))
            return scattered(np.tensordot(d, kernel, (3, 3)), x.shape, stride)

        self.back.append(backward)
        return np.tensordot(seen, kernel, 3)

    def norm(self, name: str, x: Any) -> Any:
        gamma, axes = self.w[f"{name}/gamma"], (0, 1, 2)
        mean, variance = x.mean(axes), x.var(axes)
        unit = (x - mean) / np.sqrt(variance + NORM_EPSILON)
        for key, value in (("mean", mean), ("variance", variance)):
            self.w[f"{name}/{key}"] = NORM_KEEP * self.w[f"{name}/{key}"] + (1 - NORM_KEEP) * value

        def backward(d: Any) -> Any:
            self.g[f"{name}/gamma"], self.g[f"{name}/beta"] = (d * unit).sum(axes), d.sum(axes)
            d = d * gamma
            return (d - d.mean(axes) - unit * (d * unit).mean(axes)) / np.sqrt(variance + NORM_EPSILON)

        self.back.append(backward)
        return unit * gamma + self.w[f"{name}/beta"]

    def relu(self, x: Any) -> Any:
        self.back.append(lambda d: d * (x > 0))
        return np.maximum(x, 0)

    def pool(self, x: Any) -> Any:
        n, h, w, c = x.shape
        self.back.append(lambda d: d.repeat(2, 1).repeat(2, 2) / 4)
        return x.reshape(n, h // 2, 2, w // 2, 2, c).mean((2, 4))

    def flatten(self, x: Any) -> Any:
        self.back.append(lambda d: d.reshape(x.shape))
        return x.reshape(len(x), -1)

    def dense(self, name: str, x: Any) -> Any:
        kernel = self.w[f"{name}/kernel"].copy()

        def backward(d: Any) -> Any:
            self.g[f"{name}/kernel"], self.g[f"{name}/bias"] = x.T @ d, d.sum(0)
            return d @ kernel.T

        self.back.append(backward)
        return x @ kernel + self.w[f"{name}/bias"]

    def cross_entropy(self, logits: Any, labels: Any) -> tuple[float, Any]:
        rows = np.arange(len(labels))
        log_p = logits - logits.max(1, keepdims=True)
        log_p -= np.log(np.exp(log_p).sum(1, keepdims=True))
        d = np.exp(log_p)
        d[rows, labels] -= 1
        return float(-log_p[rows, labels].mean()), d / len(labels)


class ResNet50Oracle(Oracle):
    """The ``resnet50``, from He et al.: 3, 4, 6 and 3 bottlenecks, stride in the 3x3 convolution."""

    def body(self, x: Any) -> Any:
        self.number = 0
        x = self.relu(self.conv_norm(x))
        for count, first_stride in ((3, 1), (4, 2), (6, 2), (3, 2)):
            for block in range(count):
                x = self.bottleneck(x, first_stride if block == 0 else 1, block == 0)
        return self.mean(x)

    def conv_norm(self, x: Any, stride: int = 1) -> Any:
        self.number += 1
        return self.norm(f"norm{self.number}", self.conv(f"conv{self.number}", x, stride))

    def bottleneck(self, x: Any, stride: int, projects: bool) -> Any:
        outer, self.back = self.back, []
        y = self.conv_norm(self.relu(self.conv_norm(self.relu(self.conv_norm(x)), stride)))
        body, self.back = self.back, []
        kept = self.conv_norm(x, stride) if projects else x
        shortcut, self.back = self.back, outer

        def backward(d: Any) -> Any:
            into = [d, d]
            for i, branch in enumerate((body, shortcut)):
                for step in reversed(branch):
                    into[i] = step(into[i])
            return into[0] + into[1]

        self.back.append(backward)
        return self.relu(y + kept)

    def mean(self, x: Any) -> Any:
        _, h, w, _ = x.shape
        self.back.append(lambda d: d.repeat(h, 1).repeat(w, 2) / (h * w))
        return x.mean((1, 2), keepdims=True)
