"""Per-layer values of the first steps of a run, with neutral names and layouts, for ``compare --parity``.

For each optimizer step, in the order of computation: the mean input of each batch norm (the output of the convolution
before it), the loss, whether the step was applied, and the gradients from the last layer to the first. A fault in one
layer therefore appears there first, and then in all layers that follow.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from unifiedamp_examples.data import Data
from unifiedamp_examples.models.neutral import NORM_KEEP, conv_kernels, dense_sizes
from unifiedamp_examples.run import Run

FLOAT32 = 2.0**-24
"""Half of float32's epsilon: the relative error of one rounding."""
STORED = 4
"""Maximum number of roundings in a stored array (momentum or running mean)."""


def write_trace(run: Run, step: Any, data: Data, steps: int, path: Path) -> int:
    """Train ``steps`` optimizer steps from the initial weights and write the trace; return its number of entries.

    The file is an ``.npz``: ``about`` is JSON, ``{"terms": …, "entries": [{"step", "layer", "what", "depth", "floor",
    "scale"}, …]}``; entry ``i`` has its values in ``value<i>``. ``depth`` is the number of roundings of a
    value, ``floor`` the relative error from storing it, ``scale`` a norm to compare errors with (0: its own).
    """
    entries: list[dict[str, Any]] = []
    values: list[Any] = []
    for entry, value in _entries(run, step, data, steps):
        entries.append(entry)
        values.append(value)
    about = json.dumps({"terms": _terms(run, data), "entries": entries})
    np.savez(path, about=np.array(about), **{f"value{i}": value for i, value in enumerate(values)})
    return len(entries)


def _entries(run: Run, step: Any, data: Data, steps: int) -> Iterator[tuple[dict[str, Any], Any]]:
    train, kit, amp = run.settings.train, run.kit, run.amp
    epochs = (data.batches(kit.IMAGE_AXES, train.batch_size, train.seed, epoch) for epoch in itertools.count())
    batches = itertools.chain.from_iterable(epochs)
    order = _layers(run, data)
    weights, velocity = run.weights(), kit.export_momentum(run.model, run.optimizer)
    for number in range(1, steps + 1):
        window = itertools.islice(batches, run.window)
        losses = [float(np.ravel(amp.to_numpy(step(amp.to_native(x), amp.to_native(y))))[0]) for x, y in window]
        before, weights = weights, run.weights()
        pushed, velocity = velocity, kit.export_momentum(run.model, run.optimizer)
        head = {"step": number, "floor": 0.0, "scale": 0.0}
        yield from _means(head, order, before, weights)
        loss = np.array([np.mean(losses)])
        yield {**head, "layer": "loss", "what": "loss", "depth": sum(map(_roundings, order))}, loss
        applied = np.array([float(amp.applied_steps)])
        yield {**head, "layer": "optimizer", "what": "applied steps", "depth": 0}, applied
        yield from _gradients(head, order, (before, weights), (pushed, velocity), train.momentum)


def _layers(run: Run, data: Data) -> list[str]:
    """Return the convolutions and dense layers in forward order."""
    name, size = run.settings.train.model, run.settings.train.size
    convs = [f"conv{i + 1}" for i in range(len(conv_kernels(name, data.shape, **size)))]
    return convs + [f"dense{i + 1}" for i in range(len(dense_sizes(name, data.shape, data.classes, **size)))]


def _roundings(layer: str) -> int:
    """Return the roundings of a layer and its followers: convolution, norm, pooling; product, bias. ReLU is exact."""
    return 3 if layer.startswith("conv") else 2


def _terms(run: Run, data: Data) -> int:
    """Return the maximum number of terms in a sum: inputs of a layer, or pixels of a batch in a gradient."""
    train, (height, width, _) = run.settings.train, data.shape
    convs = conv_kernels(train.model, data.shape, **train.size)
    dense = dense_sizes(train.model, data.shape, data.classes, **train.size)
    pixels = train.batch_size * (height * width if convs else 1)
    return max(
        pixels, *(rows * columns * inputs for rows, columns, inputs, _ in convs), *(inputs for inputs, _ in dense)
    )


def _means(head: dict[str, Any], order: list[str], before: Any, after: Any) -> Iterator[tuple[dict[str, Any], Any]]:
    for place, layer in enumerate(order):
        depth = sum(map(_roundings, order[:place])) + 1
        norm = layer.replace("conv", "norm")
        if f"{norm}/mean" not in after or not layer.startswith("conv"):
            continue
        mean, variance = (_of_batch(before[f"{norm}/{key}"], after[f"{norm}/{key}"]) for key in ("mean", "variance"))
        scale = float(np.sqrt(np.sum(mean**2 + np.maximum(variance, 0.0))))
        floor = STORED * FLOAT32 * float(np.linalg.norm(after[f"{norm}/mean"])) / (1 - NORM_KEEP) / max(scale, 1e-30)
        yield {**head, "layer": layer, "what": "mean output", "depth": depth, "floor": floor, "scale": scale}, mean


def _of_batch(before: Any, after: Any) -> Any:
    """Return the batch statistic from a running average before and after the step."""
    return (after.astype(np.float64) - NORM_KEEP * before.astype(np.float64)) / (1 - NORM_KEEP)


def _gradients(
    head: dict[str, Any], order: list[str], weights: tuple[Any, Any], velocity: tuple[Any, Any], momentum: float
) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield gradients recovered from the momentum; without momentum, the weight updates."""
    (before, after), keep, what = (velocity, momentum, "gradient") if momentum else (weights, 1.0, "update")
    for place, layer in reversed(list(enumerate(order))):
        depth = sum(map(_roundings, [*order, *order[place:]]))
        for name in [name for name in after if name.split("/")[0] in (layer, layer.replace("conv", "norm"))]:
            if name.endswith(("/mean", "/variance")):
                continue
            value = after[name].astype(np.float64) - keep * before[name].astype(np.float64)
            size = float(np.linalg.norm(value))
            floor = STORED * FLOAT32 * float(np.linalg.norm(after[name])) / size if size else 0.0
            floor = floor if math.isfinite(floor) else 0.0
            yield {**head, "layer": name.replace("/", "."), "what": what, "depth": depth, "floor": floor}, value
