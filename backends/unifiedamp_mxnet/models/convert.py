"""``MXNetConverter``: a copy of a model for inference whose graph holds the policy's casts."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from unifiedamp.backend import Converter, Policy, errors

from .._types import Array, Block, HybridBlock, Symbol
from ..device.arrays import is_array
from ..device.numpy_semantics import in_numpy_semantics
from ..layer_paths import is_hybrid, is_symbol_block
from ..mxnet_api import NUMPY_API, base, cast, context_of, gluon, mx
from ..patches import GRAPH_FIELDS
from ..precision.autocast import Region
from ..precision.casts import CastTable
from ..precision.layers import BoundaryCasts
from ..precision.low_precision_params import is_low_precision
from ..precision.policies import check_policy, multicasts
from ..training.prepare_checks import kind
from .weights import MastersOf


class MXNetConverter(Converter):
    """Converts to a ``gluon.SymbolBlock`` whose graph holds the casts; its parameters stay float32.

    Args:
        masters_of: Parameter → its float32 master weights.
    """

    means = "a SymbolBlock that casts float32 parameters in its graph"

    def __init__(self, masters_of: MastersOf) -> None:
        self._masters_of = masters_of

    @in_numpy_semantics
    def convert(self, model: HybridBlock, inputs: Sequence[object], policy: Policy) -> Block:
        wide = policy.replace(param_dtype="float32")
        return convert_model(model, *inputs, policy=wide, masters_of=self._masters_of)


def convert_model(
    block: HybridBlock, *inputs: object, policy: str | Policy = "mixed_bfloat16", masters_of: MastersOf = lambda _: None
) -> Block:
    """Return a copy of a model that computes under ``policy`` wherever it is called, without regions.

    MXNet's own converter casts by its operator lists and, in 2.0, loses the parameters of models built of layers; this
    one takes the graph that a region would run. Parameters stay float32 and are cast in the graph: storing them in
    bfloat16 is no faster, and MXNet 2 cannot save them so.

    Args:
        block: a ``gluon.HybridBlock``; it is not changed.
        *inputs: arrays like those it will be called with, on the device that the copy is for.
        policy: the policy or its name; overrides count.
        masters_of: Parameter → its float32 master weights, which the copy takes in place of 16-bit ones.

    Returns:
        A ``gluon.SymbolBlock`` for inference, whose outputs have the policy's output dtype. Write it to a file with
        ``export(path, remove_amp_cast=False)``: by default MXNet leaves the casts out.

    Raises:
        WrongObjectError: ``block`` is no HybridBlock (or a SymbolBlock already), or an input is no array.
        PolicyNotSupportedError: the policy cannot run on the inputs' device.
        UnsupportedError: MXNet cannot trace the model under the policy.
    """
    arrays = _check(block, inputs)
    if isinstance(policy, str):
        policy = Policy.parse(policy)
    check_policy(policy, context_of(arrays[0]))
    if any(param._data is None for param in block.collect_params().values()):
        with mx.autograd.pause():
            block(*arrays)  # Parameters whose shape follows from the input get theirs.
    names, output = _trace(block, arrays, policy)
    with warnings.catch_warnings():
        # It says that it cannot tell the inputs' dtype and takes float32 parameters, which is what they are.
        warnings.filterwarnings("ignore", "Cannot decide type", UserWarning)
        converted: Block = gluon.SymbolBlock(output, names)
    _copy_parameters(block, converted, masters_of)
    return converted


def _check(block: object, inputs: Sequence[object]) -> list[Array]:
    """Refuse what cannot be converted; return the inputs as arrays."""
    if not is_hybrid(block) or is_symbol_block(block):
        raise errors.WrongObjectError(f"convert_model: expected gluon.HybridBlock, got {kind(block)}")
    arrays = [value for value in inputs if is_array(value)]
    if not inputs or len(arrays) < len(inputs):
        raise errors.WrongObjectError("convert_model: give the arrays that the model is called with, after the model")
    return arrays


def _trace(block: HybridBlock, inputs: Sequence[Array], policy: Policy) -> tuple[list[Symbol], Symbol]:
    """Return the symbols of the inputs and of the output that a region under ``policy`` would run."""
    boundaries = BoundaryCasts()
    boundaries.add_model(block)
    fields = vars(block)
    found = {name: fields[name] for name in GRAPH_FIELDS if name in fields}
    try:
        table = CastTable(policy, multicast=multicasts(policy, context_of(inputs[0])))
        boundaries.apply(table)
        block._clear_cached_op()
        with Region(table, infer=True):
            names, output = block._get_graph(*inputs)
        return list(names), output
    except base.MXNetError as error:
        raise errors.UnsupportedError(
            f"amp.convert_model: {type(block).__name__} cannot be traced under policy '{policy}': "
            f"{str(error).strip().rpartition(chr(10))[2]}{_advice(block)}"
        ) from error
    finally:
        fields.update(found)
        boundaries.close()


def _advice(block: HybridBlock) -> str:
    """Say what to do about parameters of 16 bits: MXNet 2 runs the model while it is traced, on its own parameters."""
    if NUMPY_API and any(is_low_precision(param) for param in block.collect_params().values()):
        return "; its parameters have 16 bits: make it in a session with a mixed policy, and load its weights there"
    return ""


def _copy_parameters(source: Block, target: Block, masters_of: MastersOf) -> None:
    """Fill a converted block's parameters by those of the same name in the graph, in float32, for inference alone."""
    sources = {param.var().name: param for param in source.collect_params().values()}
    for param in target.collect_params().values():
        found = sources[param.name]
        values = [cast(value, "float32") for value in masters_of(found) or found.list_data()]
        param.shape = found.shape
        param.grad_req = "null"  # else it gets memory for gradients
        param._load_init(values[0], [context_of(value) for value in values])
