"""Blocks by path, and the casts at a block's boundary: layer overrides, and the outputs of prepared models."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from unifiedamp.backend import match_layers

from ..device.versions import NUMPY_API, gluon
from .casts import Table, cast_floats, current


def children(block: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and block of each direct child."""
    for name, child in block._children.items():
        yield name, child() if isinstance(child, weakref.ref) else child


def walk(block: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and block of the block itself (path "") and all blocks below it, once per path."""
    yield path, block
    for name, child in children(block):
        yield from walk(child, f"{path}.{name}" if path else name)


class Boundary:
    """Stands before one block's computation and asks the thread's table what to cast there.

    It is set as an attribute of the block itself, over the method of its class, on the method that both imperative
    calls and tracing go through; so its casts are part of a hybridized graph.

    Args:
        block: where it stands.
        inputs, outputs: dtypes that the block's inputs and outputs are cast to, whatever the table; None leaves them.
    """

    def __init__(self, block: Any, inputs: str | None = None, outputs: str | None = None) -> None:
        hybrid = isinstance(block, gluon.HybridBlock) and not NUMPY_API
        overridden = hybrid and type(block).forward is not gluon.HybridBlock.forward
        self._block = weakref.ref(block)
        self._inputs, self._outputs = inputs, outputs
        self._method = "hybrid_forward" if hybrid and not overridden else "forward"
        self._native: Callable[..., Any] = getattr(type(block), self._method)

    def __call__(self, *args: Any, **params: Any) -> Any:
        """Run the block's method, between the casts that the thread's table asks for."""
        if self._inputs is not None:
            args = tuple(cast_floats(arg, self._inputs) for arg in args)
        output = self._run(args, params)
        return output if self._outputs is None else cast_floats(output, self._outputs)

    def _run(self, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        block = self._block()
        table = current.table
        if table is None:
            return self._native(block, *args, **params)
        inside = table.layers.get(id(block))
        if inside is None:
            output = self._native(block, *args, **params)
        else:
            current.table = inside
            try:
                output = self._native(block, *(cast_floats(arg, inside.dtype) for arg in args), **params)
            finally:
                current.table = table
            if table.dtype == "float32":  # no operator after it casts: dtypes meet again here
                output = cast_floats(output, "float32")
        if id(block) in table.outputs:
            output = cast_floats(output, table.policy.output_dtype)
        return output

    def attach(self) -> None:
        """Put it before the block's method."""
        self._block().__dict__[self._method] = self  # type: ignore[union-attr]

    def detach(self) -> None:
        """Take it away."""
        block = self._block()
        if block is not None:
            block.__dict__.pop(self._method, None)


class Boundaries:
    """All boundaries of one session.

    Attributes:
        models: the prepared models.
    """

    def __init__(self) -> None:
        self.models: list[Any] = []
        self._set: dict[int, Boundary] = {}

    def add_model(self, model: Any) -> None:
        """Take a prepared model; again is harmless."""
        if all(model is not known for known in self.models):
            self.models.append(model)

    def apply(self, table: Table) -> None:
        """Tell ``table`` which blocks it treats apart: the policy's layer overrides and the models' outputs.

        Raises:
            PolicyError: two globs match one layer, or a glob matches none.
        """
        policy = table.policy
        if policy.compute_dtype != "float32" or policy.layer_overrides:
            for model in self.models:
                table.outputs.add(id(model))
                self._stand_at(model)
        if not policy.layer_overrides or not self.models:
            return
        blocks = self._blocks()
        for path, dtype in match_layers(policy.layer_overrides, blocks).items():
            inner = policy.replace(compute_dtype=dtype, layer_overrides={}, loss_scale=None)
            inside = Table(inner, table.scaled, table.multicast)
            inside.layers = table.layers
            table.layers[id(blocks[path])] = inside
            self._stand_at(blocks[path])

    def _blocks(self) -> dict[str, Any]:
        blocks: dict[str, Any] = {}
        for model in self.models:
            for path, block in walk(model):
                blocks.setdefault(path, block)
        return blocks

    def cast_at(self, block: Any, inputs: str, outputs: str | None = None) -> None:
        """Have a block's inputs and outputs cast wherever it is called: outside regions too."""
        self._stand_at(block, inputs, outputs)

    def _stand_at(self, block: Any, inputs: str | None = None, outputs: str | None = None) -> None:
        if id(block) not in self._set:
            boundary = self._set[id(block)] = Boundary(block, inputs, outputs)
            boundary.attach()

    def close(self) -> None:
        """Take every boundary away."""
        for boundary in self._set.values():
            boundary.detach()
        self._set.clear()
