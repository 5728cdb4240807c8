"""JAX transformations of functions that close over NNX modules.

JAX transforms functions of their arguments, and NNX passes copies of the modules to the transformed function. A step
like ``loss_fn(model(x), y)`` closes over its modules instead. While the function runs, each module therefore uses the
attributes of its copy, including submodules.
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
    """Give the modules of ``known`` the attributes of ``copies``, a graph of the same shape.

    The modules get their attributes back on exit. Values assigned in between stay in the copies.
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
