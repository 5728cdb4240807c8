"""Sketches of tensors, see ``unifiedamp.backend.sketch``; nothing here waits for the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from unifiedamp.backend.sketch import COLUMNS, WIDTH, Sketch, signs

from ..training.gradients import dense


class TensorSketch(NamedTuple):
    """A sketch before it is read: ``numbers`` are the norm and ``WIDTH`` values for each part of it, float32."""

    shape: tuple[int, ...]
    dtype: str
    numbers: torch.Tensor

    def read(self, numbers: Iterator[float], scale: float = 1.0) -> Sketch:
        """Return the sketch, of the tensor divided by ``scale``, from what was read of the device."""
        found = [next(numbers) / scale for _ in range(self.numbers.numel())]
        return Sketch.of_numbers(self.shape, self.dtype, found)

    def plus(self, other: TensorSketch) -> TensorSketch:
        """Return the sketch of the sum of two tensors; its norm is estimated from the sketch."""
        values = self.numbers[1 : 1 + WIDTH] + other.numbers[1 : 1 + WIDTH]
        return self._replace(numbers=torch.cat([torch.linalg.vector_norm(values).reshape(1), values]))


def sketch(tensor: torch.Tensor, ordered: bool = True, batch: bool = False) -> TensorSketch:
    """Return the sketch of a tensor of floating-point or complex numbers.

    Args:
        tensor: any.
        ordered: also of its elements in ascending order.
        batch: also of its sum over the first dimension.
    """
    with torch.no_grad(), torch.autocast(tensor.device.type, enabled=False):
        values = dense(tensor.detach())
        values = (torch.view_as_real(values.resolve_conj()) if values.is_complex() else values).float()
        flat = values.reshape(-1)
        parts = [torch.linalg.vector_norm(flat).reshape(1), _folded(flat)]
        if ordered:
            parts.append(_folded(flat.sort().values))
        if batch:
            parts.append(_folded(values.sum(0).reshape(-1) if values.dim() else flat))
        return TensorSketch(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), torch.cat(parts))


def _folded(flat: torch.Tensor) -> torch.Tensor:
    rows = -(-max(1, flat.numel()) // COLUMNS)
    table = torch.nn.functional.pad(flat, (0, rows * COLUMNS - flat.numel())).reshape(rows, COLUMNS)
    row_signs = 1.0 - 2.0 * signs(torch.arange(COLUMNS, COLUMNS + rows, device=flat.device))
    column_signs = 1.0 - 2.0 * signs(torch.arange(COLUMNS, device=flat.device))
    folded: torch.Tensor = (table * row_signs[:, None]).sum(0) * column_signs
    return folded.reshape(-1, WIDTH).sum(0)
