"""The casts at a block's boundary: layer overrides, and the outputs of prepared models."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

from unifiedamp.backend import match_layers

from .._types import Block
from ..layer_paths import walk
from ..mxnet_api import NUMPY_API, gluon
from . import float8_layers
from .casts import CastTable, cast_floats, current
from .emulation import current_layer, rounded_floats
from .float8_scales import DelayedScaling


class BoundaryCast:
    """Wraps one block's computation, and casts there what the thread's table says.

    It is set as an attribute of the block itself, over the method of its class, on the method that both imperative
    calls and tracing go through; so its casts are part of a hybridized graph.

    Args:
        block: the block to wrap.
        inputs, outputs: dtypes that the block's inputs and outputs are cast to, whatever the table; None leaves them.
        emulate: bfloat16 numbers are held in float32 arrays.
    """

    def __init__(
        self, block: Block, inputs: str | None = None, outputs: str | None = None, emulate: bool = False
    ) -> None:
        cls: Any = type(block)
        hybrid = isinstance(block, gluon.HybridBlock) and not NUMPY_API
        overridden = (hybrid and cls.forward is not gluon.HybridBlock.forward) or _own(block, "forward") is not None
        self._block, self._key = weakref.ref(block), id(block)
        self._inputs, self._outputs, self._emulate = inputs, outputs, emulate
        self._method = "hybrid_forward" if hybrid and not overridden else "forward"
        self._class_method: Callable[..., Any] = getattr(cls, self._method)
        self._own = _own(block, self._method)
        self._found: Callable[..., Any] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> BoundaryCast:
        """Return the same cast around the copy of the block, which the tables treat like the block."""
        block = memo.get(id(self._block()))
        if block is None:
            return self
        cast = object.__new__(BoundaryCast)
        vars(cast).update(vars(self), _block=weakref.ref(block), _own=copy.deepcopy(self._own, memo), _found=None)
        return cast

    def __reduce__(self) -> Any:
        # A pickled block belongs to no session: it gets its own method.
        return (_same, (self._own,)) if self._own is not None else (getattr, (self._block(), self._method))

    def __call__(self, *args: Any, **params: Any) -> Any:
        """Run the block's method between its casts."""
        if self._inputs is not None:
            args = tuple(self._cast(arg, self._inputs) for arg in args)
        output = self._run(args, params)
        return output if self._outputs is None else self._cast(output, self._outputs)

    def _cast(self, value: object, dtype: str) -> Any:
        return rounded_floats(value) if self._emulate and dtype == "bfloat16" else cast_floats(value, dtype)

    def _native(self, block: Block | None, *args: object, **params: object) -> Any:
        """Run the method that was set on the block, else its class's."""
        return self._class_method(block, *args, **params) if self._own is None else self._own(*args, **params)

    def _run(self, args: tuple[object, ...], params: dict[str, object]) -> Any:
        block, key = self._block(), self._key
        table = current.table
        if table is None:
            return self._native(block, *args, **params)
        inside = table.layers.get(key)
        if key in table.float8_layers:
            current_layer.key, before = table.float8_layers[key].key, current_layer.key
            try:
                output = self._native(block, *args, **params)
            finally:
                current_layer.key = before
        elif inside is None:
            output = self._native(block, *args, **params)
        else:
            current.table = inside
            try:
                output = self._native(block, *map(inside.cast_inputs, args), **params)
            finally:
                current.table = table
            if table.in_float32:  # no operator after it casts: dtypes meet again here
                output = cast_floats(output, "float32")
        if key in table.outputs:
            output = table.cast_outputs(output)
        return output

    def attach(self) -> None:
        """Wrap the block's method, in the place of another session's cast."""
        fields = vars(self._block())
        self._found = fields.get(self._method)
        fields[self._method] = self

    def detach(self) -> None:
        """Give the block back the method that it had."""
        fields = vars(self._block() or self)
        if fields.get(self._method) is not self:
            return
        if self._found is None:
            del fields[self._method]
        else:
            fields[self._method] = self._found


def _own(block: Block, method: str) -> Callable[..., Any] | None:
    """Return the method that was set on a block itself; None where it runs its class's."""
    found: Callable[..., Any] | None = vars(block).get(method)
    return found._own if isinstance(found, BoundaryCast) else found


def _same(method: Callable[..., Any]) -> Callable[..., Any]:
    return method


class BoundaryCasts:
    """All boundary casts of one session.

    Args:
        scaling: delayed float8 scaling; None for other policies.

    Attributes:
        models: the prepared models.
    """

    def __init__(self, scaling: DelayedScaling | None = None) -> None:
        self._scaling = scaling
        self.models: list[Block] = []
        self._casts: dict[int, BoundaryCast] = {}

    def add_model(self, model: Block) -> None:
        """Add a prepared model. Idempotent."""
        if all(model is not known for known in self.models):
            self.models.append(model)

    def apply(self, table: CastTable) -> None:
        """Set which blocks ``table`` treats differently: the policy's layer overrides and the models' outputs.

        Raises:
            PolicyError: two globs match one layer, or a glob matches none.
        """
        policy = table.policy
        if policy.compute_dtype != "float32" or policy.layer_overrides:
            for model in self.models:
                table.outputs.add(id(model))
                self._wrap(model)
        if self._scaling is not None and policy.compute_dtype == "float8" and policy.recipe == "delayed":
            blocks_in_use = float8_layers.in_use(self.models, policy)
            scales = self._scaling.add(float8_layers.weights_of(blocks_in_use))
            for name, block in blocks_in_use.items():
                table.float8_layers[id(block)] = scales[name]
                self._wrap(block)
        if not policy.layer_overrides or not self.models:
            return
        blocks = self._blocks()
        for path, dtype in match_layers(policy.layer_overrides, blocks).items():
            inner = policy.replace(compute_dtype=dtype, layer_overrides={}, loss_scale=None)
            inside = CastTable(inner, table.scaled, table.multicast)
            inside.layers, inside.warn = table.layers, table.warn
            for block in blocks[path]:
                table.layers[id(block)] = inside
                self._wrap(block)

    def _blocks(self) -> dict[str, list[Block]]:
        """Return path → the blocks that have it, one for each model."""
        blocks: dict[str, list[Block]] = {}
        for model in self.models:
            for path, block in walk(model):
                blocks.setdefault(path, []).append(block)
        return blocks

    def cast_at(self, block: Block, inputs: str, outputs: str | None = None, emulate: bool = False) -> None:
        """Cast a block's inputs and outputs wherever it is called: outside regions too."""
        self._wrap(block, inputs, outputs, emulate)

    def _wrap(self, block: Block, inputs: str | None = None, outputs: str | None = None, emulate: bool = False) -> None:
        if id(block) not in self._casts:
            cast = self._casts[id(block)] = BoundaryCast(block, inputs, outputs, emulate)
            cast.attach()

    def close(self) -> None:
        """Give every block its method back."""
        for cast in self._casts.values():
            cast.detach()
        self._casts.clear()
