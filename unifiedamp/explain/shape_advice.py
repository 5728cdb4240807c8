"""Which sizes of a model keep Tensor Cores idle, layer by layer, and what to pad them to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..backend import Backend, MatmulShape
from ..errors import ConfigError, UnsupportedError, nearest

MULTIPLES = {"float16": 8, "bfloat16": 8, "float8": 16, "float8_e4m3fn": 16, "float8_e5m2": 16, "float32": 1}
"""Compute dtype → what each size should be a multiple of: 16 bytes' worth of values. float32 has no Tensor Cores."""


@dataclass(frozen=True)
class ShapeAdvice:
    """One size that does not fit the tiles of Tensor Cores.

    Attributes:
        layer: the layer's path; "(batch)" for the batch size.
        kind: "linear", "conv", "rnn", "attention" or "batch".
        dimension: which of its sizes ("outputs", "input channels").
        size: as it is.
        padded: the next size that fits.
        why: in a few words.
    """

    layer: str
    kind: str
    dimension: str
    size: int
    padded: int
    why: str


def advise(
    backend: Backend, models: Sequence[Any], compute_dtype: str, batch_size: int | None = None
) -> list[ShapeAdvice]:
    """Return the sizes that are not multiples of 8 (16-bit dtypes) or of 16 (float8), in the order of the layers.

    Args:
        backend: the session's (``amp.backend``).
        models: native models, prepared or not; sizes known only from the first batch are left out.
        compute_dtype: what the policy computes in: "float16", "bfloat16", "float8". "float32" gives no advice.
        batch_size: samples per step; None leaves it out.

    Raises:
        ConfigError: a dtype that is not known.
        UnsupportedError: the backend does not declare ``shape_advice``.
    """
    multiple = _multiple(compute_dtype)
    support = backend.capabilities().feature("shape_advice")
    if not support:
        raise UnsupportedError(f"shape advice: backend {backend.name!r} gives none: {support.reason}")
    found = [
        row for shape in backend.layer_shapes.matmul_shapes(models) for row in _of_layer(shape, multiple, compute_dtype)
    ]
    if batch_size is not None and batch_size % multiple:
        why = f"the weights' gradient sums over the batch in tiles of {multiple}"
        found.append(ShapeAdvice("(batch)", "batch", "batch size", batch_size, padded(batch_size, multiple), why))
    return found


def padded(size: int, multiple: int) -> int:
    """Return the smallest multiple of ``multiple`` that is not below ``size``."""
    return -(-size // multiple) * multiple


def _multiple(dtype: str) -> int:
    if dtype not in MULTIPLES:
        raise ConfigError(
            f"shape advice: unknown compute dtype {dtype!r}{nearest(dtype, MULTIPLES)} (known: {', '.join(MULTIPLES)})"
        )
    return MULTIPLES[dtype]


def _of_layer(shape: MatmulShape, multiple: int, dtype: str) -> Iterator[ShapeAdvice]:
    for dimension, size in shape.dimensions.items():
        if size % multiple:
            why = f"{size} is no multiple of {multiple}, the width of a {dtype} tile; pad it with zeros"
            yield ShapeAdvice(shape.layer, shape.kind, dimension, size, padded(size, multiple), why)
