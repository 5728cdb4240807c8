"""The framework's own part of the recipe: one module per backend, all with the same functions.

``make_model(name, shape, classes, seed)``, ``make_optimizer(model, learning_rate, momentum)``,
``loss_fn(logits, labels)``, ``export_weights(model)``, ``import_weights(model, weights)``,
``export_momentum(model, optimizer)``, ``import_momentum(model, optimizer, momentum)``,
``download_fashion_mnist(folder)``; and ``IMAGE_AXES``, the order in which it wants the axes of an NHWC batch.

What is exported has the names and layouts of ``neutral.py``, so that any of them imports what another exported.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from unifiedamp import UnsupportedError


def for_backend(name: str) -> ModuleType:
    """Return the module ``<name>_models`` beside this file.

    Raises:
        UnsupportedError: nobody wrote one for this backend.
    """
    module = f"{__name__}.{name}_models"
    if importlib.util.find_spec(module) is None:
        raise UnsupportedError(f"the recipe has no models for backend {name!r}: add examples/models/{name}_models.py")
    return importlib.import_module(module)
