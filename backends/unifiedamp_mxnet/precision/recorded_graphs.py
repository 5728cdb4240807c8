"""Hybridized blocks in recorded steps: a separate graph that also returns the outputs of the blocks inside it.

Hooks of blocks inside a hybridized one are called while it is traced, with symbols. Those become outputs of the graph.
MXNet 2 traces otherwise; there, recorded steps run imperatively.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from .._types import Array, Block, HybridBlock, Symbol
from ..layer_paths import is_hybrid, is_symbol_block
from ..mxnet_api import NUMPY_API, mx

GRAPHS = not NUMPY_API


class TraceRecord(NamedTuple):
    """A hook's call while tracing."""

    layer: str
    kind: str
    place: str
    symbol: Any


class OutputRow(NamedTuple):
    """One recorded array of a traced call."""

    layer: str
    kind: str
    place: str
    output: int
    """Which output of the graph it is; ``~n`` is the n-th input."""


class ActivationRecorder(Protocol):
    """What records the blocks' outputs, see ``recorder.StepRecorder``."""

    traced: list[TraceRecord] | None

    def records(self, block: Block) -> bool:
        """Return whether the block has hooks."""

    def add(self, layer: str, kind: str, place: str, array: Array) -> None:
        """Record one array."""


class _Current(threading.local):
    recorder: ActivationRecorder | None = None


current = _Current()
"""This thread's."""


def recorder_of(block: Block) -> ActivationRecorder | None:
    """Return what records a block in this thread's step; None where nothing does."""
    found = current.recorder
    return found if found is not None and mx.autograd.is_recording() and found.records(block) else None


class _Traced:
    """The activations that a trace showed, as further outputs of the graph.

    Args:
        inputs: the graph's inputs.
        own: how many outputs the block has.
        records: the hooks' calls, in order.
    """

    def __init__(self, inputs: Sequence[Symbol], own: int, records: Sequence[TraceRecord]) -> None:
        # By the symbols themselves: a layer that is used twice gives its outputs one name.
        self._inputs = {id(each): place for place, each in enumerate(inputs)}
        self._outputs: dict[int, Sequence[int]] = {}
        self.extra: list[Symbol] = []
        self._records: list[TraceRecord] = []
        for record in records:
            self._add(record, own)

    def _add(self, record: TraceRecord, own: int) -> None:
        key = id(record.symbol)
        known = key in self._inputs or key in self._outputs
        if known and record.place == "input":
            return
        if not known:
            first = own + len(self.extra)
            self._outputs[key] = range(first, first + len(record.symbol))
            self.extra += list(record.symbol)
        self._records.append(record)

    def rows(self, cached_op_args: Iterable[tuple[bool, int]]) -> list[OutputRow]:
        """Return where each activation is found in a call, given the arguments of the built graph."""
        given = {place: ~n for n, (is_data, place) in enumerate(cached_op_args) if is_data}
        where: dict[int, Sequence[int]] = {key: [given[place]] for key, place in self._inputs.items() if place in given}
        where |= self._outputs
        return [OutputRow(*record[:3], n) for record in self._records for n in where.get(id(record.symbol), ())]


def build(block: HybridBlock, args: Sequence[object], recorder: ActivationRecorder) -> None:
    """Build the graph of a block whose graph was cleared, with the activations inside it as further outputs."""
    records: list[TraceRecord] = []
    recorder.traced = records
    try:
        inputs, outputs = block._get_graph(*args)
    finally:
        recorder.traced = None
    traced = _Traced(inputs, len(outputs), records)
    if traced.extra:
        vars(block)["_cached_graph"] = inputs, mx.sym.Group([outputs, *traced.extra], type(outputs))
    block._build_cache(*args)
    block._cached_op = RecordedOp(block._cached_op, len(outputs), traced.rows(block._cached_op_args))


class RecordedOp:
    """A graph that hands its further outputs to the recorder.

    Args:
        op: the graph.
        own: how many of its outputs are the block's.
        rows: what to record.
    """

    def __init__(self, op: Any, own: int, rows: Sequence[OutputRow]) -> None:
        self._op, self._own, self._rows = op, own, rows

    def __call__(self, *inputs: Array) -> list[Array]:
        """Run the graph; return the block's own outputs."""
        outputs = self._op(*inputs)
        given = [outputs] if isinstance(outputs, mx.nd.NDArray) else outputs
        if current.recorder is not None:
            for layer, kind, place, at in self._rows:
                current.recorder.add(layer, kind, place, inputs[~at] if at < 0 else given[at])
        return list(given[: self._own])

    def _register_op_hook(self, *arguments: object) -> None:
        self._op._register_op_hook(*arguments)


def symbols(value: object) -> Iterator[Symbol]:
    """Yield the symbols in a block's inputs or outputs."""
    if isinstance(value, mx.sym.Symbol):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from symbols(item)


def can_record(block: Block) -> bool:
    """Return whether a graph can show what is inside a hybridized block."""
    return GRAPHS and is_hybrid(block) and not is_symbol_block(block)
