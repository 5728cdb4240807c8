"""An ``nnx.Optimizer`` that knows its model.

Since Flax 0.11 an optimizer is handed its model at each ``update``. A loop that says ``amp.step(optimizer)`` needs to
know which parameters that moves.
"""

from __future__ import annotations

from typing import Any

import optax
from flax import nnx


class Optimizer(nnx.Optimizer):
    """``nnx.Optimizer(model, tx, wrt=wrt)`` with the attribute ``model``; everything else is Flax's.

    Args:
        model: the model to train, or an ``nnx.List`` of several.
        tx: an optax transformation.
        wrt: which Variables it moves.
    """

    def __init__(self, model: Any, tx: optax.GradientTransformation, *, wrt: Any = nnx.Param) -> None:
        super().__init__(model, tx, wrt=wrt)
        self.model = model
