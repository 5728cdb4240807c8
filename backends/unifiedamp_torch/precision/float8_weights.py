"""Weights in float8 that are cast once per accumulation window, and not for each micro-batch.

autocast's own cache lives as long as a region; this one lives as long as a window, in which nothing but a step changes
weights. It is dropped where a step ends or a window is discarded. Within a window, ``_version`` tells of a weight that
was written to. Forward passes without gradients cast anew. Tensors keep their addresses, for CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from .float8 import How, keep
from .float8_casts import E4M3, Scaled, cast
from .float8_scales import LayerScales

Pair = tuple[Scaled | None, Scaled | None]
"""A weight in float8, and its transposed copy."""

NOTHING: Pair = (None, None)


def no_cache() -> None:
    """Return no cache for a copied layer, because the session does not see the steps of the copy's optimizer."""
    return


class CachedWeight:
    """The weight of one layer.

    Args:
        module: the layer.
        how: how it computes.
        scales: of delayed scaling; else None.

    Attributes:
        fresh: cast in this window.
        live: a compiled step runs, for which the cast was made before.
    """

    def __init__(self, module: torch.nn.Linear, how: How, scales: LayerScales | None) -> None:
        self._module, self._how, self._scales = module, how, scales
        self._weight, self._version = module.weight, -1
        self._kept: Pair = NOTHING
        self.fresh = self.live = False

    def __reduce__(self) -> Any:
        return no_cache, ()

    def get(self, weight: torch.Tensor) -> Pair:
        """Return the weight's casts for a forward pass; nothing where that makes its own."""
        if not torch.is_grad_enabled():
            return NOTHING
        if self.live:
            return self._kept
        if torch.compiler.is_compiling() or weight is not self._weight:
            return NOTHING
        self.refresh()
        return self._kept

    def holds(self) -> bool:
        """Return whether the cast is that of the present weight."""
        return self.fresh and self._version == self._weight._version

    def replaced(self) -> bool:
        """Return whether the layer has another weight than the one that is cast."""
        return self._module._parameters.get("weight") is not self._weight

    def refresh(self) -> None:
        """Cast the weight, unless this window has its cast."""
        if self.holds():
            return
        known = None if self._scales is None else self._scales.now()
        with torch.inference_mode(False), torch.no_grad():
            found = cast(
                self._weight, E4M3, self._how.of_weights,
                rows=self._how.fprop, transposed=self._how.dgrad, scale=None if known is None else known.weight,
                kernels=self._how.kernels,
            )  # fmt: skip
            if known is not None:
                keep(known.weight_amax, found.amax)
            self._kept = _kept(self._kept[0], found.rows), _kept(self._kept[1], _alone(found.transposed))
        self.restore()

    def restore(self) -> None:
        """Note that the present weight was cast; a replayed step casts without this object."""
        self.fresh, self._version = True, self._weight._version


def _alone(matrix: Scaled | None) -> Scaled | None:
    """Return the matrix with its own inverse scale: dynamo refuses functions that take a tensor twice."""
    return None if matrix is None else Scaled(matrix.values, matrix.inverse.clone())


def _kept(old: Scaled | None, new: Scaled | None) -> Scaled | None:
    """Return what was cast, at the addresses of the last window's."""
    if old is None or new is None or old.values.device != new.values.device:
        return new
    old.values.copy_(new.values)
    old.inverse.copy_(new.inverse)
    return old


class CachedWeights:
    """The cached weights of a session."""

    def __init__(self) -> None:
        self._all: list[CachedWeight] = []

    def add(self, module: torch.nn.Linear, how: How, scales: LayerScales | None) -> CachedWeight | None:
        """Return the cache of a layer; None where its weight is no plain parameter of this process."""
        weight = module._parameters.get("weight")
        if weight is None or hasattr(weight, "device_mesh") or not (how.fprop or how.dgrad):
            return None
        self._all.append(CachedWeight(module, how, scales))
        return self._all[-1]

    def drop(self) -> None:
        """End the window."""
        for each in self._all:
            each.fresh = False

    @contextmanager
    def cast_before(self) -> Iterator[None]:
        """Cast what is not yet cast, for a compiled step, which reads the casts inside."""
        used: Sequence[CachedWeight] = [each for each in self._all if not each.replaced()]
        if torch.is_grad_enabled():
            for each in used:
                each.refresh()
                each.live = True
        try:
            yield
        finally:
            for each in used:
                each.live = False

    def state(self) -> tuple[bool, ...]:
        """Return which weights are cast in this window."""
        return tuple([each.holds() for each in self._all])

    def set_state(self, state: Sequence[bool]) -> None:
        """Make it so, after a replayed step that cast these or dropped them."""
        for each, fresh in zip(self._all, state, strict=False):
            if fresh:
                each.restore()
            else:
                each.fresh = False
