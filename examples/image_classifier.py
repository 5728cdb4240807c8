"""A workload for PyTorch, TensorFlow/Keras and MXNet: small image classifiers, the same network in each framework.

    unifiedamp train examples/image_classifier.py --backend torch --epochs 10 --set model=mlp
    unifiedamp train examples/configs/digits_conv.toml --backend torch
    unifiedamp compare examples/configs/digits_conv.toml
    unifiedamp parity examples/configs/digits_mlp.toml

``models/`` holds the framework-specific code (models, optimizer, loss, and how to export weights); everything else is
here, once.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Annotated, Any, Literal

from pydantic import Field

import unifiedamp as ua
from unifiedamp.workloads import ParityValue, Snapshot
from unifiedamp.workloads.compare.scores import scores

from . import data as datasets
from . import layers, models
from .evaluation import predict

COUNT = 2**31 - 1
"""The largest count or seed that every framework accepts."""
Count = Annotated[int, Field(ge=1, le=COUNT)]


@dataclass
class ImageClassifier:
    """Settings; ``backend`` is filled in by the command."""

    backend: str
    model: Literal["conv", "mlp", "resnet50"] = "conv"
    width: Annotated[int, Field(ge=1, le=1024)] | None = None  # resnet50: channels inside the first bottlenecks; 64
    data: Literal["digits", "fashion-mnist"] = "digits"
    data_folder: str | None = None
    samples: Count | None = None  # train on the first N images
    batch_size: Count = 64
    learning_rate: Annotated[float, Field(gt=0, le=1e6)] = 0.05
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    seed: Annotated[int, Field(ge=0, le=COUNT)] = 0

    may_change = ("learning_rate", "momentum", "data_folder")

    def __post_init__(self) -> None:
        if self.width is not None and self.model != "resnet50":
            raise ua.ConfigError(f"width is a setting of model 'resnet50'; {self.model!r} has none")

    @functools.cached_property
    def kit(self) -> ModuleType:
        """The framework's module of ``models/``."""
        return models.for_backend(self.backend)

    @functools.cached_property
    def images(self) -> datasets.Data:
        """The data set."""
        return datasets.load(self.data, self.data_folder, self.kit).first(self.samples)

    @property
    def size(self) -> dict[str, int]:
        """Further arguments of ``make_model``."""
        return {} if self.width is None else {"width": self.width}

    def make_model(self) -> Any:
        """Return the model; every framework's has the same initial weights."""
        return self.kit.make_model(self.model, self.images.shape, self.images.classes, self.seed, **self.size)

    def make_optimizer(self, model: Any) -> Any:
        """Return SGD."""
        return self.kit.make_optimizer(model, self.learning_rate, self.momentum)

    def loss(self, model: Any, batch: tuple[Any, Any]) -> Any:
        """Return the mean cross entropy."""
        images, labels = batch
        return self.kit.loss_fn(model(images), labels)

    def batches(self, epoch: int) -> datasets.Batches:
        """Return an epoch's batches; their order depends only on (seed, epoch)."""
        return self.images.batches(self.kit.IMAGE_AXES, self.batch_size, self.seed, epoch)

    def evaluate(self, amp: ua.Amp, model: Any) -> dict[str, float]:
        """Return the scores on the test images."""
        labels = self.images.test_labels
        found = scores(labels.tolist(), predict(amp, self.kit, model, self.images).tolist())
        return {**vars(found), "samples": len(labels)}

    # -- weights and momentum under the same names in every framework: for parity, and resuming under another one ------

    def export_weights(self, amp: ua.Amp, model: Any) -> dict[str, Any]:
        """Return the float32 weights; master weights where they exist."""
        if not self._has_masters(amp):
            return self.kit.export_weights(model)  # type: ignore[no-any-return]
        return self.kit.export_weights(model, amp.master_weights(model))  # type: ignore[no-any-return]

    def import_weights(self, amp: ua.Amp, model: Any, weights: dict[str, Any]) -> None:
        """Set the weights, master weights included."""
        if not self._has_masters(amp):
            self.kit.import_weights(model, weights)
            return
        true = amp.master_weights(model)
        self.kit.import_weights(model, weights, true)
        amp.load_master_weights(model, true)

    def export_optimizer(self, amp: ua.Amp, model: Any, optimizer: Any) -> dict[str, Any]:
        """Return the momentum, in units of a gradient."""
        return self.kit.export_momentum(model, optimizer)  # type: ignore[no-any-return]

    def import_optimizer(self, amp: ua.Amp, model: Any, optimizer: Any, state: dict[str, Any]) -> None:
        """Set the momentum."""
        self.kit.import_momentum(model, optimizer, state)

    def _has_masters(self, amp: ua.Amp) -> bool:
        """Return whether the session has master weights.

        Raises:
            ConfigError: it has, and this framework's module cannot export them.
        """
        if not has_master_weights(amp):
            return False
        if "true" not in inspect.signature(self.kit.export_weights).parameters:
            raise ua.ConfigError(
                f"amp.master_weights: these checkpoints hold no master weights for {self.backend!r} yet; use the "
                "backend 'torch' or 'tensorflow', a mixed policy, or a workload without export_weights"
            )
        return True

    def parity_values(self, before: Snapshot, after: Snapshot) -> Iterator[ParityValue]:
        """Yield what each batch norm saw, the loss, and the gradients, recovered from the momentum."""
        shape, classes = self.images.shape, self.images.classes
        known = layers.Layers(self.model, shape, classes, self.batch_size, self.size)
        return known.values(before, after, self.momentum)


def has_master_weights(amp: ua.Amp) -> bool:
    """Return whether a session trains float32 copies of 16-bit parameters."""
    return any(row.setting == "master_weights" for row in amp.explain())
