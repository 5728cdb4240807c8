"""Sketches of arrays, see ``unifiedamp.backend.sketch``; computed by numpy, of a copy on the host."""

from __future__ import annotations

import numpy as np

from unifiedamp.backend.sketch import Sketch, sketch_of

from .._types import Array, Block
from ..mxnet_api import cast, dtype_name, gluon


def sketch(array: Array, scale: float = 1.0, batch: bool = False) -> Sketch:
    """Return the sketch of an array divided by ``scale``; ``batch``: also of its sum over the first dimension."""
    values = cast(array, "float32").asnumpy() / np.float32(scale)
    found = sketch_of(values, batch)
    return Sketch(found.shape, dtype_name(array), found.norm, found.values, found.ordered, found.batch)


def last_function(block: Block) -> str:
    """Return the name of the activation function that a block applies last; empty for none."""
    inner = block if isinstance(block, gluon.nn.Activation) else getattr(block, "act", None)
    return str(inner._act_type) if isinstance(inner, gluon.nn.Activation) else ""
