"""Models that are changed after they were prepared, the framework's own way."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .._types import Block
from ..mxnet_api import BFLOAT16


@contextmanager
def _told_of_nothing() -> Iterator[None]:
    """MXNet 2 warns that a hybridized block is imperative from here on."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Currently the model has been hybridized", UserWarning)
        yield


def put_layer(model: Any, name: str, layer: Block) -> Block:
    """Put a layer at the end of what ``MXNetHarness.mlp`` returned, or in the place of the one with this name."""
    with _told_of_nothing():
        setattr(model, name, layer)
    model.order = list(dict.fromkeys([*model.order, name]))
    return layer


def cast_model(model: Any, dtype: str) -> None:
    """Cast the parameters of a block."""
    with _told_of_nothing():
        model.cast(BFLOAT16 if dtype == "bfloat16" else dtype)  # MXNet knows no name of it
