"""Sketches of tensors, see ``unifiedamp.backend.sketch``; nothing here waits for the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from unifiedamp.backend.sketch import COLUMNS, WIDTH, Sketch, signs

from ..training.gradients import dense


class TensorSketch(NamedTuple):
    """A sketch before it is read: ``numbers`` are the norm and ``WIDTH`` values, float32."""

    shape: tuple[int, ...]
    dtype: str
    numbers: torch.Tensor

    def read(self, numbers: Iterator[float], scale: float = 1.0) -> Sketch:
        """Return the sketch, of the tensor divided by ``scale``, from what was read of the device."""
        norm, *values = (next(numbers) / scale for _ in range(1 + WIDTH))
        return Sketch(self.shape, self.dtype, norm, values)

    def plus(self, other: TensorSketch) -> TensorSketch:
        """Return the sketch of the sum of two tensors; its norm is estimated from the sketch."""
        values = self.numbers[1:] + other.numbers[1:]
        return self._replace(numbers=torch.cat([torch.linalg.vector_norm(values).reshape(1), values]))


def sketch(tensor: torch.Tensor) -> TensorSketch:
    """Return the sketch of a tensor of floating-point numbers."""
    with torch.no_grad(), torch.autocast(tensor.device.type, enabled=False):
        values = dense(tensor.detach()).float()
        flat = values.reshape(-1)
        rows = -(-max(1, flat.numel()) // COLUMNS)
        table = torch.nn.functional.pad(flat, (0, rows * COLUMNS - flat.numel())).reshape(rows, COLUMNS)
        row_signs = 1.0 - 2.0 * signs(torch.arange(COLUMNS, COLUMNS + rows, device=flat.device))
        column_signs = 1.0 - 2.0 * signs(torch.arange(COLUMNS, device=flat.device))
        folded = (table * row_signs[:, None]).sum(0) * column_signs
        norm = torch.linalg.vector_norm(flat).reshape(1)
        numbers = torch.cat([norm, folded.reshape(-1, WIDTH).sum(0)])
        return TensorSketch(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), numbers)
