"""ResNet-50 in torch, with the stride in the bottleneck's 3x3 convolution ("v1.5").

He et al., "Deep Residual Learning for Image Recognition", https://arxiv.org/abs/1512.03385.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

EXPANSION = 4
FULL = ((3, 4, 6, 3), 64)
"""Blocks per stage, and the width of the first stage."""
TINY = ((1, 1), 8)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a shortcut.

    Args:
        inputs: input channels.
        width: inner channels; the output has ``EXPANSION`` times as many.
        stride: stride of the 3x3 convolution.
        norm: makes a batch norm for a number of channels.
    """

    def __init__(self, inputs: int, width: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        outputs = width * EXPANSION
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.norm1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.norm2 = norm(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.norm3 = norm(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, inputs, h, w) → (n, 4 · width, h / stride, w / stride)."""
        kept = x if self.shortcut is None else self.shortcut(x)
        x = self.relu(self.norm1(self.conv1(x)))
        x = self.relu(self.norm2(self.conv2(x)))
        return self.relu(self.norm3(self.conv3(x)) + kept)


class ResNet(nn.Module):
    """Stem, stages of bottlenecks, global average pooling, one dense layer.

    Args:
        blocks: blocks per stage.
        width: width of the first stage; it doubles with each stage.
        classes: number of outputs.
        channels: image channels.
        small_images: start with a 3x3 convolution that keeps the image size, as is usual up to 32x32 pixels, instead
            of a 7x7 one and pooling, which reduce height and width by four.
        norm: makes a batch norm for a number of channels.
    """

    def __init__(
        self, blocks: Sequence[int], width: int, classes: int, channels: int = 3, *,
        small_images: bool = False, norm: Callable[[int], nn.Module] = nn.BatchNorm2d,
    ) -> None:  # fmt: skip
        super().__init__()
        stem = nn.Conv2d(channels, width, *((3, 1, 1) if small_images else (7, 2, 3)), bias=False)
        self.stem = nn.Sequential(stem, norm(width), nn.ReLU(inplace=True))
        if not small_images:
            self.stem.append(nn.MaxPool2d(3, 2, padding=1))
        stages: list[nn.Module] = []
        inputs = width
        for stage, number in enumerate(blocks):
            for block in range(number):
                stages.append(Bottleneck(inputs, width << stage, 2 if stage and not block else 1, norm))
                inputs = (width << stage) * EXPANSION
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, channels, h, w) → (n, classes)."""
        return self.head(self.stages(self.stem(x)).mean((2, 3)))
