"""``amp.compile``: ``nnx.jit`` over a step that closes over its models, its optimizers and the session."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
from flax import nnx
from jax.extend.core import get_opaque_trace_state

from .standin import stand_in

if TYPE_CHECKING:
    from .backend import JaxBackend


def current_trace() -> Any:
    """Return an identifier of the current JAX trace, for comparison."""
    return get_opaque_trace_state(convention="nnx")


@jax.tree_util.register_pytree_node_class
class Static:
    """A hashable value in a pytree's structure: part of the trace's key as an argument, constant as a result."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def tree_flatten(self) -> tuple[tuple[()], Any]:
        """Return no arrays, and the value as structure."""
        return (), self.value

    @classmethod
    def tree_unflatten(cls, value: Any, _: Any) -> Static:
        """Rebuild the value."""
        return cls(value)


def compile_step(backend: JaxBackend, fn: Callable[..., Any], window: Any) -> Callable[..., Any]:
    """Return ``fn`` compiled, with the state it closes over passed in and out as arrays.

    The key of a trace is ``window.snapshot()``, the modules' attributes (training or evaluation mode) and the region.
    The final snapshot is returned with the results.
    """

    @functools.partial(nnx.jit, graph=True)
    def run(start: Static, copies: Any, carry: Any, args: Any, kwargs: Any) -> Any:
        outer = backend.carry, backend.trace
        backend.carry, backend.trace = carry, current_trace()
        try:
            with stand_in(backend.bundle(), copies):
                output = fn(*args, **kwargs)
            return Static(window.snapshot()), output, backend.carry
        finally:
            backend.carry, backend.trace = outer
            window.restore(start.value)

    @functools.wraps(fn, updated=())
    def step(*args: Any, **kwargs: Any) -> Any:
        start = Static(window.snapshot())
        end, output, backend.carry = run(start, backend.bundle(), backend.carry, args, kwargs)
        window.restore(end.value)
        return output

    return step
