"""A model's own parameters in float16, under a policy with ``param_dtype``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from unifiedamp.backend import Policy, errors, match_layers, rounding

from .._types import Array, Block, Parameter
from ..layer_paths import is_hybrid, walk
from ..mxnet_api import BFLOAT16, context_of, copy, dtype_name, gluon, param_dtype
from .bfloat16_bits import bits_of, write_bits, write_rounded

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
        path: "float32" for path, block in blocks.items() if policy.keep_norm_float32 and isinstance(block, _NORMS)
    }
    return norms | named


def cast_parameters(model: Block, dtypes: Mapping[str, str], policy: Policy) -> dict[int, Arrays]:
    """Cast a model's parameters to the policy's dtype or their layer's.

    Batch norm stays float32: its operator takes no other parameters, as ``BatchNorm.cast`` knows too.

    Returns:
        id of each Parameter that was cast → its arrays before.

    Raises:
        PrepareError: a Parameter's gradient would be sparse in 16 bits; nothing is cast.
    """
    changes = list(_changes(model, dtypes, policy))
    _check_sparse(changes)
    before: dict[int, Arrays] = {}
    for _, param, dtype in changes:
        before[id(param)] = list(param._data or ())
        _cast(param, dtype)
        param._var = None  # MXNet 1.9 leaves a symbol of the old dtype there
    if before:
        for _, block in walk(model):
            if is_hybrid(block):
                block._clear_cached_op()
    return before


def round_parameters(model: Block, dtypes: Mapping[str, str], policy: Policy) -> dict[int, Parameter]:
    """Round the parameters that a policy has in bfloat16, in float32 arrays; see :func:`cast_parameters`.

    Returns:
        id → Parameter, of those.

    Raises:
        PrepareError: see :func:`cast_parameters`.
    """
    wanted = list(_wanted(model, dtypes, policy))
    _check_sparse([each for each in wanted if each[2] == "bfloat16"])
    if any(param_dtype(param.dtype) != "float32" for _, param, _ in wanted):
        cast_parameters(model, dict.fromkeys(dict(walk(model)), "float32"), policy)
    found = {id(param): param for _, param, dtype in wanted if dtype == "bfloat16"}
    for param in found.values():
        for array in param._data or ():
            write_rounded(array, rounding.nearest(array.asnumpy()))
    return found


def _cast(param: Parameter, dtype: str) -> None:
    before = list(param._data or ())
    if before:  # MXNet casts no array in the layout of a convolution that has run
        param._data = [_plain(array) for array in before]
        param._grad = None if param._grad is None else [_plain(array) for array in param._grad]
    param.cast(BFLOAT16 if dtype == "bfloat16" else dtype)
    for array, values in zip(param._data or (), before if dtype == "bfloat16" else (), strict=False):
        if dtype_name(values) == "float32":
            write_bits(array, bits_of(rounding.nearest(values.asnumpy())))


def _plain(array: Array) -> Array:
    return copy(array) if array.stype == "default" else array


def _changes(model: Block, dtypes: Mapping[str, str], policy: Policy) -> Iterator[tuple[str, Parameter, str]]:
    """Yield the path of a block, a Parameter of it that has another dtype than it should, and that dtype."""
    for path, param, dtype in _wanted(model, dtypes, policy):
        if param_dtype(param.dtype) != dtype:
            yield path, param, dtype


def _wanted(model: Block, dtypes: Mapping[str, str], policy: Policy) -> Iterator[tuple[str, Parameter, str]]:
    """Yield the path of a block, a Parameter of it, and the dtype that it should have."""
    seen: set[int] = set()
    for path, block in walk(model):
        dtype = "float32" if hasattr(block, "running_mean") else dtype_at(path, dtypes) or policy.param_dtype
        for param in block._reg_params.values():
            if param_dtype(param.dtype) in FLOATING and id(param) not in seen:
                seen.add(id(param))
                yield path, param, dtype


def _check_sparse(changes: Sequence[tuple[str, Parameter, str]]) -> None:
    """Refuse sparse gradients in 16 bits on a CPU: MXNet's backward pass of an embedding takes wider ones alone."""
    for path, param, dtype in changes:
        on_cpu = any(context_of(array).device_type == "cpu" for array in param._data or ())
        if dtype != "float32" and param._grad_stype != "default" and param.grad_req != "null" and on_cpu:
            raise errors.PrepareError(
                f"layer {path!r} has sparse gradients (sparse_grad=True), which MXNet does not compute in {dtype} on a "
                f"CPU: make it without sparse_grad, or keep it in float32 by layer_overrides={{{path!r}: 'float32'}}"
            )


def dtype_at(path: str, dtypes: Mapping[str, str]) -> str | None:
    """Return the dtype of a block at ``path``: its own, or that of the nearest block around it that has one."""
    while path and path not in dtypes:
        path = path.rpartition(".")[0]
    return dtypes.get(path)
