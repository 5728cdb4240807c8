"""Gluon blocks by path: "features.0" is the first child of the child named ``features``."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TypeGuard

from ._types import Block, HybridBlock, Parameter
from .mxnet_api import gluon


def children(block: Block) -> Iterator[tuple[str, Block]]:
    """Yield name and block of each direct child."""
    for name, child in block._children.items():
        yield name, child() if isinstance(child, weakref.ref) else child  # type: ignore[misc]  # parents keep them alive


def walk(block: Block, path: str = "") -> Iterator[tuple[str, Block]]:
    """Yield path and block of the block itself (path "") and all blocks below it, once per path."""
    yield path, block
    for name, child in children(block):
        yield from walk(child, f"{path}.{name}" if path else name)


def is_hybrid(block: object) -> TypeGuard[HybridBlock]:
    """Return whether Gluon can trace the block."""
    return isinstance(block, gluon.HybridBlock)


def is_symbol_block(block: object) -> bool:
    """Return whether the block runs a graph that was read from a file."""
    return isinstance(block, gluon.SymbolBlock)


def prelus_below(block: Block) -> list[str]:
    """Return the paths of ``PReLU`` layers below a block.

    In a graph with other layers, MXNet multiplies the gradient of ``alpha`` by ``alpha`` itself (1.9.1 and 2.0.0b1): it
    reads the layer's output for its input. In a graph of the layer alone the gradient is right.
    """
    return [path for path, each in walk(block) if path and isinstance(each, gluon.nn.PReLU)]


def named_parameters(block: Block) -> Iterator[tuple[str, Parameter]]:
    """Yield the path and the parameter of each parameter in the block and below it."""
    yield from block._collect_params_with_prefix().items()
