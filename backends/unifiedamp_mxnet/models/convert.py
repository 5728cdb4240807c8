"""``convert_model``: a copy of a model for inference whose graph holds the policy's casts."""

from __future__ import annotations

import warnings
from typing import Any

from unifiedamp.backend import Policy, errors

from .. import capabilities
from ..device.versions import NDArray, cast, context_of, gluon, mx
from ..precision.autocast import Region
from ..precision.casts import Table
from ..precision.graphs import FIELDS
from ..precision.layers import Boundaries
from ..training import prepare
from .weights import MastersOf


def convert_model(
    block: Any, *inputs: Any, policy: str | Policy = "mixed_bfloat16", masters_of: MastersOf = lambda _: None
) -> Any:
    """Return a copy of a model that computes under ``policy`` wherever it is called, without regions.

    MXNet's own converter casts by its operator lists and, in 2.0, loses the parameters of models built of layers; this
    one takes the graph that a region would run. Parameters stay float32 and are cast in the graph: storing them in
    bfloat16 is no faster, and MXNet 2 cannot save them so.

    Args:
        block: a ``gluon.HybridBlock``; it is left as it is.
        *inputs: arrays like those it will be called with, on the device that the copy is for.
        policy: the policy or its name; overrides count.
        masters_of: Parameter → its float32 master weights, which the copy takes in place of 16-bit ones.

    Returns:
        A ``gluon.SymbolBlock`` for inference, whose outputs have the policy's output dtype. Write it to a file with
        ``export(path, remove_amp_cast=False)``: by default MXNet leaves the casts out.

    Raises:
        WrongObjectError: ``block`` is no HybridBlock (or a SymbolBlock already), or an input is no array.
        PolicyNotSupportedError: the policy cannot run on the inputs' device.
    """
    if not isinstance(block, gluon.HybridBlock) or isinstance(block, gluon.SymbolBlock):
        raise errors.WrongObjectError(f"convert_model: expected gluon.HybridBlock, got {prepare.kind(block)}")
    if not inputs or not all(isinstance(value, NDArray) for value in inputs):
        raise errors.WrongObjectError("convert_model: give the arrays that the model is called with, after the model")
    if isinstance(policy, str):
        policy = Policy.parse(policy)
    capabilities.check_region_policy(policy, context_of(inputs[0]))
    if any(param._data is None for param in block.collect_params().values()):
        with mx.autograd.pause():
            block(*inputs)  # Parameters whose shape follows from the input get theirs.
    names, output = _trace(block, inputs, policy)
    with warnings.catch_warnings():
        # It says that it cannot tell the inputs' dtype and takes float32 parameters, which is what they are.
        warnings.filterwarnings("ignore", "Cannot decide type", UserWarning)
        converted = gluon.SymbolBlock(output, names)
    values = {param.var().name: param for param in block.collect_params().values()}
    for param in converted.collect_params().values():
        source = values[param.name]
        _copy(source, masters_of(source), param)
    return converted


def _trace(block: Any, inputs: tuple[Any, ...], policy: Policy) -> tuple[list[Any], Any]:
    """Return the symbols of the inputs and of the output that a region under ``policy`` would run."""
    boundaries = Boundaries()
    boundaries.add_model(block)
    fields = block.__dict__
    found = {name: fields[name] for name in FIELDS if name in fields}
    try:
        table = Table(policy, multicast=capabilities.multicasts(policy, context_of(inputs[0])))
        boundaries.apply(table)
        block._clear_cached_op()
        with Region(table, infer=True):
            names, output = block._get_graph(*inputs)
        return list(names), output
    finally:
        fields.update(found)
        boundaries.close()


def _copy(source: Any, masters: list[Any] | None, target: Any) -> None:
    values = [cast(value, "float32") for value in masters or source.list_data()]
    target.shape = source.shape
    target._load_init(values[0], [context_of(value) for value in values])
