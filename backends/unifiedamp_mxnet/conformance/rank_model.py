# mypy: disallow-subclassing-any=False, warn-return-any=False
"""The model that the kit trains on several contexts, for both versions of MXNet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._types import Array, HostArray, Symbol
from ..mxnet_api import NUMPY_API, gluon, mx


class RankModel(gluon.HybridBlock):
    """``sum(w_i * x_i)`` of vectors; it takes the x_i one after the other in one vector."""

    def __init__(self, weights: Sequence[HostArray]) -> None:
        super().__init__()
        self.count = len(weights)
        for i, each in enumerate(weights):
            name = f"w{i}"
            make = gluon.Parameter if NUMPY_API else self.params.get
            setattr(self, name, make(name, shape=each.shape, init=mx.init.Zero()))

    def ordered(self) -> list[Any]:
        """Return the parameters in order."""
        return [getattr(self, f"w{i}") for i in range(self.count)]

    if NUMPY_API:

        def forward(self, x: Array) -> Array:
            return (mx.np.concatenate([param.data(x.device) for param in self.ordered()]) * x).sum()

    else:

        def hybrid_forward(self, F: Any, x: Symbol, **weights: Any) -> Symbol:
            return F.sum(F.concat(*[weights[f"w{i}"] for i in range(self.count)], dim=0) * x)
