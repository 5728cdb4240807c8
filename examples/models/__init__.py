"""The framework-specific code of the image classifiers: one module per backend, with the same functions.

``make_model(name, shape, classes, seed)`` (for ``resnet50`` with ``width=`` too),
``make_optimizer(model, learning_rate, momentum)``, ``loss_fn(logits, labels)``,
``export_weights(model)``, ``import_weights(model, weights)``,
``export_momentum(model, optimizer)``, ``import_momentum(model, optimizer, momentum)``,
``download_fashion_mnist(folder)``, and ``IMAGE_AXES``, the framework's permutation of the axes of an NHWC batch.

Exported arrays have the names and layouts of ``neutral.py``, so every backend can import what another exported.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from unifiedamp import UnsupportedError


def for_backend(name: str) -> ModuleType:
    """Return the module ``<name>_models`` of this package.

    Raises:
        UnsupportedError: there is no module for this backend.
    """
    module = f"{__name__}.{name}_models"
    if importlib.util.find_spec(module) is None:
        raise UnsupportedError(
            f"the example has no models for backend {name!r}: add examples/models/{name}_models.py, or "
            "write a workload for it"
        )
    return importlib.import_module(module)
