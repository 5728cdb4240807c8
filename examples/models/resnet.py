"""ResNet-50 for small images, without a framework: the sizes that each of them builds it from.

A 3x3 convolution that keeps the image's size (usual where images have 8 to 32 pixels a side), four stages of
bottlenecks (1x1, 3x3 and 1x1 convolutions, each with batch norm, beside a shortcut), the mean over the image, and one
dense layer. A stage halves the image in the 3x3 convolution of its first bottleneck ("v1.5"), after one pixel of zeros
on each side. Convolutions are numbered block by block; a shortcut's comes last of its block's. The last batch norm of
each bottleneck's body begins with a gamma of 0, so that the network begins as a shallow one: it learns more steadily.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCKS = (3, 4, 6, 3)
"""Bottlenecks of each stage."""
WIDTH = 64
"""Channels inside the bottlenecks of the first stage; each later stage has twice its predecessor's."""


@dataclass(frozen=True)
class Block:
    """A bottleneck: channels that come in, channels inside, and the stride of its 3x3 convolution."""

    inputs: int
    width: int
    stride: int

    @property
    def outputs(self) -> int:
        """Channels that go out."""
        return 4 * self.width

    @property
    def has_shortcut(self) -> bool:
        """Whether the shortcut needs a convolution, to change channels or size."""
        return self.stride != 1 or self.inputs != self.outputs

    @property
    def convs(self) -> list[tuple[int, int, int, int]]:
        """(kernel, stride, inputs, outputs) of its convolutions; the shortcut's, if there is one, is the fourth."""
        body = [(1, 1, self.inputs, self.width), (3, self.stride, self.width, self.width)]
        body.append((1, 1, self.width, self.outputs))
        return body + [(1, self.stride, self.inputs, self.outputs)] * self.has_shortcut


def blocks(width: int) -> list[Block]:
    """Return the bottlenecks, first to last; ``width`` of the first stage."""
    found: list[Block] = []
    for stage, count in enumerate(BLOCKS):
        for number in range(count):
            inputs = found[-1].outputs if found else width
            found.append(Block(inputs, width << stage, 2 if stage and not number else 1))
    return found


def zero_norms(width: int) -> set[int]:
    """Return the numbers, from 1, of the batch norms whose gamma begins at 0."""
    found, last = set(), 1
    for block in blocks(width):
        found.add(last + 3)
        last += len(block.convs)
    return found


def convs(channels: int, width: int) -> list[tuple[int, int, int, int]]:
    """Return (kernel, stride, inputs, outputs) of all convolutions, for images of so many channels."""
    return [(3, 1, channels, width), *(conv for block in blocks(width) for conv in block.convs)]
