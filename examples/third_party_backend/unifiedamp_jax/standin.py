"""Lets a function that closes over NNX modules be transformed by JAX.

JAX transforms functions of their arguments, and NNX hands a transformed function copies of the modules it was given.
A step in the shape of ``loss_fn(model(x), y)`` closes over its modules instead. So for as long as the function runs,
each module that it may know stands in for its copy: it borrows the copy's attributes, submodules included.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flax import nnx


def _nodes(root: Any) -> dict[Any, Any]:
    return {path: node for path, node in nnx.iter_graph(root, graph=True) if isinstance(node, nnx.Pytree)}


@contextmanager
def stand_in(known: Any, copies: Any) -> Iterator[None]:
    """Lend the attributes of ``copies`` to the modules of ``known``, two graphs of the same shape.

    The modules have their own back on exit. What was assigned meanwhile belongs to the copies.
    """
    lenders = _nodes(copies)
    borrowers = _nodes(known)
    own = [(node, node.__dict__) for node in borrowers.values()]
    try:
        for path, node in borrowers.items():
            object.__setattr__(node, "__dict__", lenders[path].__dict__)
        yield
    finally:
        for node, attributes in own:
            object.__setattr__(node, "__dict__", attributes)
