"""Models and batches of the benchmarks, and unifiedamp's training loop over them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

import unifiedamp as ua
from examples import models
from unifiedamp.conformance.harness import load_harness

LEARNING_RATE, MOMENTUM = 0.01, 0.9
LARGE = ("resnet50", "gpt2", "llama", "unet", "vit")


@dataclass(frozen=True)
class Recipe:
    """A model and its batch.

    Attributes:
        model: from the examples ("conv", "mlp"), from ``nets`` (one of ``LARGE``), or from the
            conformance harness: an "mlp" if ``width`` is set, or a "chain" of equal dense layers.
        shape: shape of an image (height, width, channels), or length of a text.
        batch: images or texts per batch.
        width: units per hidden layer, for the harness's models.
        depth: number of hidden layers, for the harness's models.
        classes: number of outputs.
        optimizer: "sgd" (with momentum) or "adamw".
        rate: learning rate.
        first_scale: initial dynamic loss scale.
        unit: unit of throughput.
        tiny: use a small model of the same kind, to test the script.
    """

    model: str
    shape: tuple[int, ...]
    batch: int
    width: int = 0
    depth: int = 3
    classes: int = 10
    optimizer: str = "sgd"
    rate: float = LEARNING_RATE
    first_scale: float = 2.0**16
    unit: str = "img"
    tiny: bool = False

    @property
    def per_step(self) -> int:
        """Units per step."""
        return self.batch * self.shape[0] if self.unit == "tok" else self.batch

    def loss_scale(self, policy: str) -> ua.DynamicLossScale | None:
        """Return the loss scale under a policy: dynamic for float16, else the policy's default."""
        return ua.DynamicLossScale(initial_scale=self.first_scale) if policy == "mixed_float16" else None


RECIPES = {
    "conv 28x28": Recipe("conv", (28, 28, 1), 64),
    "conv 8x8": Recipe("conv", (8, 8, 1), 64),
    "mlp 3x256": Recipe("mlp", (8, 8, 1), 64),
    "mlp 3x256, AdamW": Recipe("mlp", (8, 8, 1), 64, optimizer="adamw", rate=1e-3),
    "wide mlp 3x2048": Recipe("mlp", (28, 28, 1), 256, width=2048),
    # The frameworks' default initial scales overflow in the first step. torch's fused SGD (2.11) trains to nan if that
    # step is skipped (see docs/loss-scaling.md), and nan steps have another speed.
    "ResNet-50 224": Recipe("resnet50", (224, 224, 3), 256, classes=1000, first_scale=2.0**8),
    "ResNet-50 28": Recipe("resnet50", (28, 28, 3), 512, optimizer="adamw", rate=1e-3),
    "GPT-2 small 1024": Recipe("gpt2", (1024,), 16, classes=50257, optimizer="adamw", rate=1e-4, unit="tok"),
}
U_NET = Recipe("unet", (128, 128, 3), 16, classes=2, optimizer="adamw", rate=3e-4)
WARM_UP = {
    "ViT-S/16": Recipe("vit", (224, 224, 3), 64, classes=1000, optimizer="adamw", rate=1e-4),
    "U-Net 128": U_NET,
}
"""The recipes of ``warm_up.py``."""
DISTRIBUTED = {
    "mlp 3x256, AdamW": RECIPES["mlp 3x256, AdamW"],
    "ResNet-50 28": RECIPES["ResNet-50 28"],
    "U-Net 128": U_NET,
    "GPT-2 small 1024": replace(RECIPES["GPT-2 small 1024"], batch=8, classes=50304),
    "GPT-2 small 1024, larger batch": replace(RECIPES["GPT-2 small 1024"], classes=50304),
    "ResNet-50 224": RECIPES["ResNet-50 224"],
    "4 blocks of Llama-3-8B": Recipe("llama", (8192,), 1, classes=512, optimizer="adamw", rate=1e-4, unit="tok"),
}
"""The recipes of ``distributed.py``, with the batch of each rank."""
REPLICAS = {"ResNet-50 224": replace(RECIPES["ResNet-50 224"], batch=128), "conv 28x28": RECIPES["conv 28x28"]}
"""The recipes of ``replicas.py``, with the batch of each replica."""
GPU_RECIPES = ("mlp 3x256, AdamW", "ResNet-50 28", "ResNet-50 224", "GPT-2 small 1024")


def tiny(recipe: Recipe) -> Recipe:
    """Return a tiny version of a recipe, to test a script."""
    if recipe.unit == "tok":
        return replace(recipe, shape=(16,), batch=2, classes=64, rate=1e-2, tiny=True)
    if recipe.model in ("unet", "vit"):
        return replace(recipe, shape=(16, 16, 3), batch=2, tiny=True)
    if recipe.model == "resnet50":
        return replace(recipe, shape=(32, 32, 3), batch=2, classes=10, tiny=True)
    return replace(recipe, batch=8, width=min(recipe.width, 64), tiny=True)


def find(name: str, smoke: bool) -> Recipe:
    """Return a recipe by name, its tiny version for a smoke test."""
    return tiny(RECIPES[name]) if smoke else RECIPES[name]


class Parts:
    """One backend's native objects for one recipe.

    Args:
        backend: the backend's name; its framework must be imported already (unifiedamp makes MXNet importable).
        recipe: the recipe.
        form: torch's optimizer implementation, "fused" or "foreach".
    """

    def __init__(self, backend: str, recipe: Recipe, form: str = "fused") -> None:
        self.recipe, self.backend, self._form = recipe, backend, form
        self.models = models.for_backend(backend)
        # The examples have one optimizer and no large models.
        self._nets = importlib.import_module(f"nets.{backend}_nets") if self._needs_nets() else None
        large = recipe.model in LARGE
        self.loss_fn = self._nets.loss_fn(recipe) if large else self.models.loss_fn
        rng = np.random.default_rng(0)
        size = (recipe.batch, *recipe.shape)
        if recipe.unit == "tok":
            tokens = rng.integers(0, recipe.classes, (recipe.batch, recipe.shape[0] + 1))
            self.images, self.labels = tokens[:, :-1].copy(), tokens[:, 1:].copy()
            return
        images = rng.standard_normal(size, np.float32)
        axes = self.models.IMAGE_AXES
        self.images = images.reshape(len(images), -1) if recipe.width else np.ascontiguousarray(images.transpose(axes))
        each = size[:3] if recipe.model == "unet" else size[:1]
        self.labels = rng.integers(0, recipe.classes, each).astype(np.int64 if large else np.int32)

    def _needs_nets(self) -> bool:
        return self.recipe.model in LARGE or self.recipe.optimizer != "sgd" or self._form != "fused"

    def model(self) -> Any:
        """Return a new model; the initial weights are always the same."""
        recipe = self.recipe
        if recipe.model in LARGE:
            return self._nets.make_model(recipe)
        if not recipe.width:
            return self.models.make_model(recipe.model, recipe.shape, recipe.classes, 0)
        sizes = [int(np.prod(recipe.shape)), *[recipe.width] * recipe.depth, recipe.classes]
        layer = _same if recipe.model == "chain" else _dense
        return load_harness(self.backend).mlp([layer(m, n) for m, n in pairwise(sizes)])

    def optimizer(self, model: Any) -> Any:
        """Return the recipe's optimizer."""
        if self._nets is None:
            return self.models.make_optimizer(model, self.recipe.rate, MOMENTUM)
        return self._nets.make_optimizer(model, self.recipe.optimizer, self._form, self.recipe.rate, MOMENTUM)


def _dense(inputs: int, outputs: int) -> tuple[Any, Any]:
    weight = np.random.default_rng(inputs).standard_normal((inputs, outputs), np.float32)
    return weight * np.float32(2 / inputs) ** 0.5, np.zeros(outputs, np.float32)


def _same(inputs: int, outputs: int) -> tuple[Any, Any]:
    """An identity layer: activations neither explode nor vanish in a deep chain."""
    return np.eye(inputs, outputs, dtype=np.float32), np.zeros(outputs, np.float32)


def layered(amp: ua.Amp, parts: Parts, change: Callable[[Any], Any] = lambda model: model) -> Callable[[], Any]:
    """Return a training step with unifiedamp on the fixed batch, compiled as the session says.

    Args:
        amp: the session.
        parts: native objects and batch.
        change: applied to the model before its optimizer is created.
    """
    train_step = train_step_of(amp, parts, change)
    x, y = amp.to_native(parts.images), amp.to_native(parts.labels)
    return lambda: train_step(x, y)


def train_step_of(
    amp: ua.Amp, parts: Parts, change: Callable[[Any], Any] = lambda model: model
) -> Callable[[Any, Any], Any]:
    """Return the training step of :func:`layered`, which takes a batch."""
    with amp.scope():
        model = change(parts.model())
        optimizer = parts.optimizer(model)
    model, optimizer = amp.prepare(model, optimizer)
    loss_fn = parts.loss_fn

    @amp.compile
    def train_step(x: Any, y: Any) -> Any:
        with amp.autocast():
            loss = loss_fn(model(x), y)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        amp.step(optimizer)
        return loss

    return train_step
