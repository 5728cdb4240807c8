"""Which dense layers of the prepared models run in float8: what the plan says of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unifiedamp.backend import PlanRow, Policy, SessionSpec, errors

from .._types import Block, Parameter
from ..layer_paths import walk
from ..mxnet_api import gluon
from .low_precision_params import dtype_at, layer_dtypes

RULE = (
    "Dense layers, and calls of FullyConnected, whose inputs and outputs are multiples of {multiple}, unless "
    "layer_overrides names them or a layer that holds them"
)


def choose(model: Block, policy: Policy) -> dict[str, str]:
    """Return layer path → why it does not run in float8 ("" where it does), for every dense layer.

    Raises:
        PolicyError: two globs of ``layer_overrides`` match one layer, or a glob matches none.
    """
    dtypes = layer_dtypes(model, policy) if policy.layer_overrides else {}
    dense = {path: block for path, block in walk(model) if isinstance(block, gluon.nn.Dense)}
    multiple = policy.float8.multiple
    return {path: rejection_reason(block, dtype_at(path, dtypes), multiple) for path, block in dense.items()}


def in_use(models: Sequence[Block], policy: Policy) -> dict[str, Block]:
    """Return name → layer, for the dense layers that run in float8."""
    return {
        (f"model{index}." if index else "") + (path or "(the model)"): dict(walk(model))[path]
        for index, model in enumerate(models)
        for path, why in choose(model, policy).items()
        if not why
    }


def weights_of(layers: Mapping[str, Block]) -> dict[str, Parameter]:
    """Return name → the weight of each ``gluon.nn.Dense``, of shape (outputs, inputs)."""
    return {name: layer._reg_params["weight"] for name, layer in layers.items()}


def rejection_reason(layer: Block, kept: str | None, multiple: int) -> str:
    """Return why a dense layer does not run in float8; "" where it does, as far as its sizes are known.

    Args:
        layer: a ``gluon.nn.Dense``.
        kept: the dtype that ``layer_overrides`` gave it, or None.
        multiple: what the recipe's products need sizes to be multiples of.
    """
    if kept:
        return f"layer_overrides: {kept}"
    sizes = zip(("units", "in_units"), weights_of({"": layer})[""].shape, strict=True)
    odd = [f"{name}={size}" for name, size in sizes if size > 0 and size % multiple]
    return f"{', '.join(odd)}: not a multiple of {multiple}" if odd else ""


def check(models: Sequence[Block], spec: SessionSpec) -> None:
    """Warn where no dense layer of the prepared models runs in float8.

    Raises:
        PolicyError: see :func:`choose`.
    """
    chosen = [item for model in models for item in choose(model, spec.policy).items()]
    if all(why for _, why in chosen):
        path, why = next(iter(chosen), ("", "there is no Dense layer"))
        policy = spec.policy.replace(emulate=False)
        spec.warn(f"policy '{policy}' runs no layer in float8: {path and path + ': '}{why}", errors.PolicyWarning)


def rows(models: Sequence[Block], policy: Policy) -> list[PlanRow]:
    """Return the rows of ``amp.explain()``: the rule, and each dense layer once models are prepared."""
    chosen: Mapping[str, str] = {
        f"model{index}.{path}" if len(models) > 1 else path or "(the model)": why
        for index, model in enumerate(models)
        for path, why in choose(model, policy).items()
    }
    count = f"{sum(not why for why in chosen.values())} of {len(chosen)} dense layers" if models else "dense layers"
    recipe, native = policy.float8, f"{policy.float8.emulation_text()}, in numpy"
    found = [
        PlanRow("float8", count, native, "emulated", RULE.format(multiple=recipe.multiple)),
        PlanRow("float8 recipe", recipe.name, recipe.formats_text(), "emulated", recipe.scales_text()),
    ]
    for path, why in chosen.items():
        if why:
            found.append(PlanRow(f"float8.{path}", "not float8", "as the emulated bfloat16", note=why))
        else:
            found.append(PlanRow(f"float8.{path}", recipe.layer_format, native, "emulated"))
    return found
