"""The framework-specific code of the recipe: one module per backend, with the same functions.

``make_model(name, shape, classes, seed)`` (for ``resnet50`` with ``width=`` too),
``make_optimizer(model, learning_rate, momentum)``, ``loss_fn(logits, labels)``,
``export_weights(model)``, ``import_weights(model, weights)``,
``export_momentum(model, optimizer)``, ``import_momentum(model, optimizer, momentum)``,
``download_fashion_mnist(folder)``, and ``IMAGE_AXES``, the framework's permutation of the axes of an NHWC batch.

Exported arrays have the names and layouts of ``neutral.py``, so every backend can import what another exported.

A third-party backend registers its module as an entry point in the group ``unifiedamp.recipe_models``.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from types import ModuleType

from unifiedamp import UnsupportedError

GROUP = "unifiedamp.recipe_models"


def for_backend(name: str) -> ModuleType:
    """Return the module ``<name>_models`` of this package, or the one registered by another distribution.

    Raises:
        UnsupportedError: there is no module for this backend.
    """
    module = f"{__name__}.{name}_models"
    if importlib.util.find_spec(module) is not None:
        return importlib.import_module(module)
    for point in entry_points(group=GROUP, name=name):
        found: ModuleType = point.load()
        return found
    raise UnsupportedError(
        f"the recipe has no models for backend {name!r}: add examples/models/{name}_models.py, or name a module by an "
        f"entry point {name!r} in the group {GROUP!r}"
    )
