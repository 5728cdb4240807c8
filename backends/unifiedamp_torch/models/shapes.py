"""The role that knows the sizes of matrix products."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from unifiedamp.backend import LayerShapes, MatmulShape

from ..layer_paths import plain_name

nn = torch.nn
_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


class TorchLayerShapes(LayerShapes):
    """One entry per layer that multiplies matrices; lazy modules are left out until their first batch."""

    means = "Linear, convolutions, RNNs, MultiheadAttention"

    def matmul_shapes(self, models: Sequence[nn.Module]) -> list[MatmulShape]:
        return list(_shapes(models))


def _shapes(models: Iterable[nn.Module]) -> Iterator[MatmulShape]:
    for model in models:
        inside: set[nn.Module] = set()
        for path, module in model.named_modules():
            sizes = None if module in inside else _sizes(module)
            if sizes:
                inside.update(module.modules())
                yield MatmulShape(plain_name(path) or type(module).__name__, *sizes)


def _sizes(module: nn.Module) -> tuple[str, dict[str, int]] | None:
    if isinstance(module, nn.Linear):
        return _known("linear", {"inputs": module.in_features, "outputs": module.out_features})
    if isinstance(module, _CONVS):
        return _conv(module.in_channels, module.out_channels, module.groups)
    if isinstance(module, nn.RNNBase):
        return "rnn", {"inputs": module.input_size, "units": module.hidden_size}
    if isinstance(module, nn.MultiheadAttention):
        return "attention", {"embedding": module.embed_dim, "head size": module.head_dim}
    return None


def _conv(inputs: int, outputs: int, groups: int) -> tuple[str, dict[str, int]] | None:
    if inputs == groups > 1:
        return None  # depthwise: no Tensor Core kernel, and padding makes none
    return _known("conv", {"input channels": inputs // groups, "output channels": outputs // groups})


def _known(kind: str, sizes: dict[str, int]) -> tuple[str, dict[str, int]] | None:
    there: Sequence[int] = [size for size in sizes.values() if size]
    return (kind, {name: size for name, size in sizes.items() if size}) if there else None
