"""U-Net in torch (Ronneberger et al., 2015), with batch normalization; transposed convolutions go up.

Images are channels first; the output has a class score for each pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

FULL, TINY = (64, 128, 256, 512), (4, 8)
"""Channels of each level."""


def block(inputs: int, outputs: int) -> nn.Sequential:
    """Return two convolutions, each normalized and rectified."""
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """A U-Net over RGB images.

    Args:
        channels: of each level, from the image's own resolution down.
        classes: number of output channels.
    """

    def __init__(self, channels: Sequence[int], classes: int) -> None:
        super().__init__()
        self.down = nn.ModuleList([block(a, b) for a, b in pairwise((3, *channels))])
        self.up = nn.ModuleList([nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(channels)])
        self.merge = nn.ModuleList([block(2 * a, a) for a in channels[:-1]])
        self.head = nn.Conv2d(channels[0], classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores, shape (batch, classes, height, width)."""
        levels: list[torch.Tensor] = []
        for index, down in enumerate(self.down):
            x = down(functional.max_pool2d(x, 2) if index else x)
            levels.append(x)
        for index in reversed(range(len(self.up))):
            x = self.merge[index](torch.cat([self.up[index](x), levels[index]], 1))
        return self.head(x)
