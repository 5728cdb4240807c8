"""The layers of prepared models that multiply matrices: sizes, and what each computes in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import Any

from ..policy.layer_globs import match_layers
from .shape_advice import advise


def layer_rows(amp: Any, models: Sequence[Any], batch_size: int | None = None) -> dict[str, Any]:
    """Return the layers that multiply matrices, the dtype each computes in, and the sizes that do not suit it.

    Args:
        amp: the session.
        models: its models.
        batch_size: samples per step; None leaves it out.
    """
    support = amp.capabilities.feature("shape_advice")
    if not support:
        return {"layers": [], "shapes": [], "shapes_reason": support.reason}
    known = list(amp.backend.layer_shapes.matmul_shapes(models))
    # A glob may name a layer that is none of these.
    globs = {g: d for g, d in amp.policy.layer_overrides.items() if any(fnmatchcase(one.layer, g) for one in known)}
    other = match_layers(globs, [one.layer for one in known])
    in_use = amp.policy.float8.layer_format
    float8 = {row.setting.removeprefix("float8.") for row in amp.explain() if row.value == in_use}
    dtypes = {
        one.layer: "float8" if one.layer in float8 else one.dtype or other.get(one.layer) or amp.policy.region_dtype
        for one in known
    }
    layers = [
        {"layer": one.layer, "kind": one.kind, "sizes": dict(one.dimensions), "dtype": dtypes[one.layer]}
        for one in known
    ]
    # Of the advice for each dtype, what is said of the layers that compute in it; the batch goes through all of them.
    dtypes["(batch)"] = amp.policy.compute_dtype
    advice = [
        asdict(one)
        for dtype in dict.fromkeys(dtypes.values())
        for one in advise(amp.backend, models, dtype, batch_size)
        if dtypes[one.layer] == dtype
    ]
    order = list(dtypes)
    return {"layers": layers, "shapes": sorted(advice, key=lambda one: order.index(one["layer"]))}
