"""A JAX backend for unifiedamp: Flax NNX models, optax optimizers, ``jax.jit`` as ``amp.compile``.

``Optimizer`` is an ``nnx.Optimizer`` with a reference to its model. ``promote_dtype`` makes a custom layer follow the
policy, like Flax's layers. Importing the package does not import JAX until one of them is accessed.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["Optimizer", "promote_dtype"]

_HOMES = {"Optimizer": ".optimizer", "promote_dtype": ".autocast"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
