"""The layer sizes of ResNet-50 for small images, shared by all frameworks.

A 3x3 convolution that keeps the image size (usual for images of 8 to 32 pixels per side), four stages of bottlenecks
(1x1, 3x3 and 1x1 convolutions, each with batch norm, and a shortcut), global average pooling, and one dense layer. A
stage halves the image in the 3x3 convolution of its first bottleneck ("v1.5"), after one pixel of zero padding on each
side. Convolutions are numbered block by block; a shortcut's convolution is the last of its block. The last batch norm
of each bottleneck's body starts with gamma 0, which makes early training more stable.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCKS = (3, 4, 6, 3)
"""Bottlenecks per stage."""
WIDTH = 64
"""Inner channels of the bottlenecks of the first stage; they double with each stage."""


@dataclass(frozen=True)
class Block:
    """A bottleneck: input channels, inner channels, and the stride of its 3x3 convolution."""

    inputs: int
    width: int
    stride: int

    @property
    def outputs(self) -> int:
        """Output channels."""
        return 4 * self.width

    @property
    def has_shortcut(self) -> bool:
        """Whether the shortcut needs a convolution, to change channels or size."""
        return self.stride != 1 or self.inputs != self.outputs

    @property
    def convs(self) -> list[tuple[int, int, int, int]]:
        """(kernel, stride, inputs, outputs) of the convolutions; the shortcut's, if any, is the fourth."""
        body = [(1, 1, self.inputs, self.width), (3, self.stride, self.width, self.width)]
        body.append((1, 1, self.width, self.outputs))
        return body + [(1, self.stride, self.inputs, self.outputs)] * self.has_shortcut


def blocks(width: int) -> list[Block]:
    """Return the bottlenecks in forward order; ``width`` is that of the first stage."""
    found: list[Block] = []
    for stage, count in enumerate(BLOCKS):
        for number in range(count):
            inputs = found[-1].outputs if found else width
            found.append(Block(inputs, width << stage, 2 if stage and not number else 1))
    return found


def zero_norms(width: int) -> set[int]:
    """Return the numbers, from 1, of the batch norms whose gamma starts at 0."""
    found, last = set(), 1
    for block in blocks(width):
        found.add(last + 3)
        last += len(block.convs)
    return found


def convs(channels: int, width: int) -> list[tuple[int, int, int, int]]:
    """Return (kernel, stride, inputs, outputs) of all convolutions, for images with ``channels`` channels."""
    return [(3, 1, channels, width), *(conv for block in blocks(width) for conv in block.convs)]
