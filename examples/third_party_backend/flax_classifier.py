"""The image classifiers of ``examples/image_classifier.py``, in Flax too: one workload for this backend and the others.

unifiedamp train flax_classifier.py --backend jax --epochs 10 --set learning_rate=0.02
unifiedamp parity flax_classifier.py --backends jax,torch --set model=mlp
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import ModuleType

import flax_models

from examples import models
from examples.image_classifier import ImageClassifier


@dataclass
class FlaxClassifier(ImageClassifier):
    """The same settings, data and evaluation; under ``jax``, the models of ``flax_models.py``."""

    @functools.cached_property
    def kit(self) -> ModuleType:
        """The framework's models."""
        return flax_models if self.backend == "jax" else models.for_backend(self.backend)
