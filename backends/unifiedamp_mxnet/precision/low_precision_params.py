"""A model's own parameters in float16, under a policy with ``param_dtype``."""

from __future__ import annotations

from collections.abc import Mapping

from unifiedamp.backend import Policy, match_layers

from .._types import Array, Block, Parameter
from ..layer_paths import is_hybrid, walk
from ..mxnet_api import gluon, param_dtype

FLOATING = ("float32", "float16", "bfloat16")
_NORMS = (gluon.nn.LayerNorm, gluon.nn.GroupNorm, gluon.nn.InstanceNorm)

Arrays = list[Array]
"""One array for each context."""


def is_low_precision(param: Parameter) -> bool:
    """Return whether a Parameter has 16 bits."""
    return param_dtype(param.dtype) in ("float16", "bfloat16")


def layer_dtypes(model: Block, policy: Policy) -> dict[str, str]:
    """Return path → dtype of the blocks that do not have the policy's: layer overrides, and norms that stay float32.

    Raises:
        PolicyError: two globs match one layer, or a glob matches none.
    """
    blocks = dict(walk(model))
    named = match_layers(policy.layer_overrides, blocks) if policy.layer_overrides else {}
    norms = {
        path: "float32"
        for path, block in blocks.items()
        if policy.keep_norm_float32 and isinstance(block, _NORMS) and _at(path, named) is None
    }
    return norms | named


def cast_parameters(model: Block, dtypes: Mapping[str, str], policy: Policy) -> dict[int, Arrays]:
    """Cast a model's parameters to the policy's dtype or their layer's.

    Batch norm stays float32: its operator takes no other parameters, as ``BatchNorm.cast`` knows too.

    Returns:
        id of each Parameter that was cast → its arrays before.
    """
    blocks = dict(walk(model))
    before: dict[int, Arrays] = {}
    for path, block in blocks.items():
        dtype = "float32" if hasattr(block, "running_mean") else _at(path, dtypes) or policy.param_dtype
        for param in block._reg_params.values():
            now = param_dtype(param.dtype)
            if now in FLOATING and now != dtype:
                before[id(param)] = list(param._data or ())
                param.cast(dtype)
                param._var = None  # MXNet 1.9 leaves a symbol of the old dtype there
    if before:
        for block in blocks.values():
            if is_hybrid(block):
                block._clear_cached_op()
    return before


def _at(path: str, dtypes: Mapping[str, str]) -> str | None:
    """Return the dtype of a block at ``path``: its own, or that of the nearest block around it that has one."""
    while path and path not in dtypes:
        path = path.rpartition(".")[0]
    return dtypes.get(path)
