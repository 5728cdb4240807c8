"""Weights and optimizer states of a recorded step: how their values are distributed.

Weights are copied where an optimizer's gradients are complete, and everything is counted after its step, both inside
the CUDA graph of a captured step. Many tensors share a kernel: most are so small that launching one costs more than
its work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from unifiedamp.backend import errors, recording

from ..device.kinds import traits
from ..distributed.wrapped import sharded
from ..training.gradients import parameters
from ..training.prepared import PreparedObjects
from .reductions import count, flat

AT_ONCE = 2**26
"""Values of a tensor that are counted at a time: what counting takes in memory."""

NUMBERS = recording.BUCKETS + 1
"""Numbers of each tensor: its norm, then its counts."""


class StateRow(NamedTuple):
    """One counted tensor: its parameter, its name among the parameter's states, and its dtype."""

    param: str
    state: str
    dtype: str


class StepStates:
    """The weights and states of the optimizers whose step is recorded.

    Args:
        prepared: the session's.

    Attributes:
        rows: what was counted, in order.
    """

    def __init__(self, prepared: PreparedObjects) -> None:
        self._prepared = prepared
        self._kept: dict[int, torch.Tensor] = {}
        self._optimizers: list[torch.optim.Optimizer] = []
        self.rows: list[StateRow] = []

    @torch.no_grad()
    def keep_weights(self, optimizer: torch.optim.Optimizer) -> None:
        """Copy an optimizer's weights before its step."""
        weights = [_real(param) for param in parameters(optimizer)]
        if optimizer in self._optimizers or not weights:
            return
        copies = [torch.empty_like(each, dtype=torch.float32) for each in weights]
        torch._foreach_copy_(copies, weights)
        self._kept.update(zip(map(id, parameters(optimizer)), copies, strict=True))
        self._optimizers.append(optimizer)

    @torch.no_grad()
    def counted(self, device: torch.device) -> torch.Tensor | None:
        """Return :data:`NUMBERS` numbers for each of ``rows`` on ``device``; None where there are none.

        Drops the copies, which then hold the updates.
        """
        tensors: list[torch.Tensor] = []
        for optimizer in self._optimizers:
            for row, tensor in self._tensors(optimizer):
                self.rows.append(row)
                tensors.append(_real(tensor))
        self._kept, self._optimizers = {}, []
        return _numbers(tensors, device) if tensors else None

    def _tensors(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[StateRow, torch.Tensor]]:
        """Yield each weight, update and state; counts of steps have another shape."""
        params = [param for param in parameters(optimizer) if id(param) in self._kept]
        updates = [self._kept[id(param)] for param in params]
        torch._foreach_sub_(updates, [_real(param) for param in params])  # negated: only magnitudes are counted
        names = dict(zip(map(id, parameters(optimizer)), self._prepared.param_names(optimizer), strict=True))
        for param, update in zip(params, updates, strict=True):
            values: dict[str, Any] = {recording.WEIGHT: param, **optimizer.state.get(param, {})}
            for state, tensor in values.items():
                if isinstance(tensor, torch.Tensor) and tensor.shape == param.shape and tensor.numel():
                    yield StateRow(names[id(param)], state, str(tensor.dtype).removeprefix("torch.")), tensor
            if param.numel():
                yield StateRow(names[id(param)], recording.UPDATE, "float32"), update


def refuse_sharded(prepared: PreparedObjects) -> None:
    """Raise UnsupportedError where ranks hold parts of weights and states."""
    if sharded(prepared.models):
        raise errors.UnsupportedError(
            "amp.record(states=True): fully_shard divides weights and optimizer states between ranks; record a run of "
            "DistributedDataParallel or of one process"
        )


def read(rows: Sequence[StateRow], numbers: Sequence[Sequence[float]]) -> dict[str, dict[str, recording.StateCounts]]:
    """Return parameter → state → its counts; ``numbers``: of each row, see :meth:`StepStates.counted`."""
    found: dict[str, dict[str, recording.StateCounts]] = {}
    for row, (norm, *counts) in zip(rows, numbers, strict=True):
        found.setdefault(row.param, {})[row.state] = recording.StateCounts(list(map(int, counts)), norm, row.dtype)
    return found


def _real(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _numbers(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return the norm and the counts of each tensor, one after the other."""
    wide = traits(device).wide_dtype
    pieces = [_pieces(flat(each)) for each in tensors]
    together = [piece for parts in pieces for piece in parts]
    counts = torch.cat([each.to(device, wide) for each, _ in count(together, None)]).reshape(-1, recording.BUCKETS)
    norms = torch._foreach_norm([piece.float() for piece in together])
    squares = torch.stack([each.to(device, wide) for each in norms]).square_()
    numbers = torch.cat([squares[:, None], counts], 1)
    if len(together) > len(tensors):
        of_tensor = torch.split(numbers, [len(parts) for parts in pieces])
        numbers = torch.stack([part.sum(0) for part in of_tensor])
    numbers[:, 0].sqrt_()
    return numbers.reshape(-1)


def _pieces(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.split(values, AT_ONCE)
