"""``MXNetLayerShapes``: the sizes of a Gluon block's matrix products."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from unifiedamp.backend import LayerShapes, MatmulShape

from .._types import Block
from ..layer_paths import walk
from ..mxnet_api import gluon

nn = gluon.nn
_CONVS = (nn.Conv1D, nn.Conv2D, nn.Conv3D)
_TRANSPOSED = (nn.Conv1DTranspose, nn.Conv2DTranspose, nn.Conv3DTranspose)
_RNNS = (gluon.rnn.RNN, gluon.rnn.LSTM, gluon.rnn.GRU)

Sizes = tuple[str, dict[str, int]]


class MXNetLayerShapes(LayerShapes):
    """Reads sizes from Gluon's layers; those that follow from the first batch are left out before it."""

    def matmul_shapes(self, models: Sequence[Block]) -> list[MatmulShape]:
        return list(_matmul_shapes(models))


def _matmul_shapes(models: Iterable[Block]) -> Iterator[MatmulShape]:
    for model in models:
        for path, block in walk(model):
            sizes = _sizes(block)
            if sizes:
                yield MatmulShape(path or type(block).__name__, *sizes)


def _sizes(block: Block) -> Sizes | None:
    if isinstance(block, nn.Dense):
        return _only_known("linear", {"inputs": _known_size(block.weight.shape[1]), "outputs": block._units})
    if isinstance(block, (*_CONVS, *_TRANSPOSED)):
        return _conv(block)
    if isinstance(block, _RNNS):
        return _only_known("rnn", {"inputs": block._input_size, "units": block._hidden_size})
    return None


def _known_size(size: int) -> int:
    """Return a size; 0 where it is not known yet, for which MXNet has 0 or -1."""
    return max(size, 0)


def _conv(block: Any) -> Sizes | None:
    groups, layout = block._kwargs["num_group"], block._kwargs["layout"]
    inputs = block._in_channels // groups
    if not inputs and isinstance(block, _TRANSPOSED):
        inputs = _known_size(block.weight.shape[layout.index("N")]) // groups
    elif not inputs:
        inputs = _known_size(block.weight.shape[layout.index("C")])
    if inputs == 1 and groups > 1:
        return None  # depthwise: no Tensor Core kernel, and padding makes none
    return _only_known("conv", {"input channels": inputs, "output channels": block._channels // groups})


def _only_known(kind: str, sizes: dict[str, int]) -> Sizes | None:
    known = {name: size for name, size in sizes.items() if size}
    return (kind, known) if known else None
