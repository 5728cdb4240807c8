"""MXNet: ResNet-50 (v1) of Gluon's model zoo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mxnet as mx
from mxnet import gluon

IMAGE_AXES = (0, 3, 1, 2)
_cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()


def make_model(recipe: Any) -> Any:
    """Return a newly initialized ResNet-50."""
    mx.random.seed(0)
    model = gluon.model_zoo.vision.resnet50_v1(classes=recipe.classes)
    model.initialize(mx.init.MSRAPrelu())
    height, width, channels = recipe.shape
    model(mx.nd.zeros((1, channels, height, width)))
    return model


def make_optimizer(model: Any, kind: str, form: str, rate: float, momentum: float) -> Any:
    """Return a Trainer with SGD or Adam (MXNet 1.9 has no AdamW), updating in the worker."""
    name, settings = ("adam", {}) if kind == "adamw" else ("sgd", {"momentum": momentum})
    settings["learning_rate"] = rate
    return gluon.Trainer(model.collect_params(), name, settings, update_on_kvstore=False)


def loss_fn(recipe: Any) -> Callable[[Any, Any], Any]:
    """Return the mean cross entropy."""
    return lambda logits, labels: _cross_entropy(logits, labels).mean()
