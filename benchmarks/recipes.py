"""What is trained in the benchmarks: models, a fixed batch, and the layer's own loop over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

import unifiedamp as ua
from unifiedamp.conformance.harness import load_harness
from unifiedamp_examples import models

CLASSES = 10
LEARNING_RATE, MOMENTUM = 0.01, 0.9


@dataclass(frozen=True)
class Recipe:
    """A model of the examples (or of the conformance harness, where ``width`` is set) and its batch.

    Attributes:
        model: "conv" or "mlp".
        shape: of one image: height, width, channels.
        batch: images in a batch.
        width: units of each hidden layer, for an MLP wider than the example's.
    """

    model: str
    shape: tuple[int, int, int]
    batch: int
    width: int = 0


RECIPES = {
    "conv 28x28": Recipe("conv", (28, 28, 1), 64),
    "conv 8x8": Recipe("conv", (8, 8, 1), 64),
    "mlp 3x256": Recipe("mlp", (8, 8, 1), 64),
    "wide mlp 3x2048": Recipe("mlp", (28, 28, 1), 256, width=2048),
}


class Parts:
    """One backend's native objects for one recipe.

    Args:
        backend: the backend's name; its session must exist already (MXNet needs the layer's help to be imported).
        recipe: what is trained.
    """

    def __init__(self, backend: str, recipe: Recipe) -> None:
        self.recipe = recipe
        self.models = models.for_backend(backend)
        self.backend = backend
        self.loss_fn = self.models.loss_fn
        rng = np.random.default_rng(0)
        images = rng.standard_normal((recipe.batch, *recipe.shape), np.float32)
        axes = self.models.IMAGE_AXES
        self.images = images.reshape(recipe.batch, -1) if recipe.width else np.ascontiguousarray(images.transpose(axes))
        self.labels = rng.integers(0, CLASSES, recipe.batch).astype(np.int32)

    def model(self) -> Any:
        """Return a new model; its first weights are always the same."""
        recipe = self.recipe
        if not recipe.width:
            return self.models.make_model(recipe.model, recipe.shape, CLASSES, 0)
        sizes = [int(np.prod(recipe.shape)), *[recipe.width] * 3, CLASSES]
        return load_harness(self.backend).mlp([_dense(m, n) for m, n in pairwise(sizes)])

    def optimizer(self, model: Any) -> Any:
        """Return the example's optimizer."""
        return self.models.make_optimizer(model, LEARNING_RATE, MOMENTUM)


def _dense(inputs: int, outputs: int) -> tuple[Any, Any]:
    weight = np.random.default_rng(inputs).standard_normal((inputs, outputs), np.float32)
    return weight * np.float32(2 / inputs) ** 0.5, np.zeros(outputs, np.float32)


def layered(amp: ua.Amp, parts: Parts, compiled: bool) -> Callable[[], Any]:
    """Return one training step by the layer, on the fixed batch."""
    with amp.scope():
        model = parts.model()
        optimizer = parts.optimizer(model)
    model, optimizer = amp.prepare(model, optimizer)
    loss_fn = parts.loss_fn
    x, y = amp.to_native(parts.images), amp.to_native(parts.labels)

    def train_step(x: Any, y: Any) -> Any:
        with amp.autocast():
            loss = loss_fn(model(x), y)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        amp.step(optimizer)
        return loss

    step = amp.compile(train_step) if compiled else train_step
    return lambda: step(x, y)
