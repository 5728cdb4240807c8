"""The framework's own part of the recipe: one module per backend, all with the same functions.

``make_model(name, shape, classes, seed)`` (for ``resnet50`` with ``width=`` too),
``make_optimizer(model, learning_rate, momentum)``, ``loss_fn(logits, labels)``,
``export_weights(model)``, ``import_weights(model, weights)``,
``export_momentum(model, optimizer)``, ``import_momentum(model, optimizer, momentum)``,
``download_fashion_mnist(folder)``; and ``IMAGE_AXES``, the order in which it wants the axes of an NHWC batch.

What is exported has the names and layouts of ``neutral.py``, so that any of them imports what another exported.

A backend that lives elsewhere names its module by an entry point, in the group ``unifiedamp.recipe_models``.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from types import ModuleType

from unifiedamp import UnsupportedError

GROUP = "unifiedamp.recipe_models"


def for_backend(name: str) -> ModuleType:
    """Return the module ``<name>_models`` beside this file, or the one that another distribution brings.

    Raises:
        UnsupportedError: nobody wrote one for this backend.
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
