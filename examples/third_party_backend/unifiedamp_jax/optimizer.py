"""An ``nnx.Optimizer`` with a reference to its model.

Since Flax 0.11, ``update`` takes the model as an argument. ``amp.step(optimizer)`` needs to know which parameters to
update.
"""

from __future__ import annotations

from typing import Any

import optax
from flax import nnx


class Optimizer(nnx.Optimizer):
    """``nnx.Optimizer(model, tx, wrt=wrt)`` with the attribute ``model``; otherwise unchanged.

    Args:
        model: the model to train, or an ``nnx.List`` of several.
        tx: an optax transformation.
        wrt: the Variables to train.
    """

    def __init__(self, model: Any, tx: optax.GradientTransformation, *, wrt: Any = nnx.Param) -> None:
        super().__init__(model, tx, wrt=wrt)
        self.model = model
