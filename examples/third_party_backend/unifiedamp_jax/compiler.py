"""``amp.compile``: ``nnx.jit`` over a step that closes over its models, its optimizers and the session."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from unifiedamp.backend import Compiler, StepOrderState, StepResult, errors

from .device import JaxDevice
from .session import JaxSession, current_trace
from .standin import stand_in


@jax.tree_util.register_pytree_node_class
class Static:
    """A hashable value in a pytree's structure: as an argument it keys the trace, as a result it belongs to it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def tree_flatten(self) -> tuple[tuple[()], Any]:
        """Return no arrays, and the value."""
        return (), self.value

    @classmethod
    def tree_unflatten(cls, value: Any, _: Any) -> Static:
        """Return it again."""
        return cls(value)


class JaxCompiler(Compiler):
    """Compiles steps by ``flax.nnx.jit``, in both modes.

    Args:
        session: what a step carries.
        device: no longer read without waiting once a step is compiled.
    """

    means = "flax.nnx.jit"
    replays_traces = True

    def __init__(self, session: JaxSession, device: JaxDevice) -> None:
        self._session, self._device = session, device

    def compile(self, fn: Callable[..., Any], order: StepOrderState, mode: str) -> Callable[..., Any]:
        self._device.reads_without_sync = False
        return compile_step(self._session, fn, order)

    def tracing(self) -> bool:
        return isinstance(self._session.carry.numbers["scale"], jax.core.Tracer)


def compile_step(session: JaxSession, fn: Callable[..., Any], order: StepOrderState) -> Callable[..., Any]:
    """Return ``fn`` with everything it closes over carried in and out as arrays.

    A trace is keyed by ``order.snapshot()``, by the modules' attributes (training or evaluation mode), by where their
    trained parameters are, and by the region; the snapshot it ended in comes back with its results.
    """

    @functools.partial(nnx.jit, graph=True)
    def run(start: Static, copies: Any, carry: Any, args: Any, kwargs: Any) -> Any:
        outer = session.carry, session.trace
        session.carry, session.trace = carry, current_trace()
        try:
            with stand_in(session.bundle(), copies):
                output = fn(*args, **kwargs)
            if any(isinstance(leaf, StepResult) for leaf in jax.tree.leaves(output)):
                raise errors.StepOrderError(
                    "amp.compile: the function returns the result of amp.step, which a compiled step cannot: look at "
                    "amp.loss_scale, amp.applied_steps and amp.skipped_steps after the call"
                )
            return Static(order.snapshot()), output, session.carry
        finally:
            session.carry, session.trace = outer
            order.restore(start.value[0])

    @functools.wraps(fn, updated=())
    def step(*args: Any, **kwargs: Any) -> Any:
        if current_trace() != session.trace:
            raise errors.UnsupportedError(
                "amp.compile: what is compiled by itself cannot be differentiated by amp.backward; compile the whole "
                "training step, whose closure calls the model"
            )
        session.look()
        start = Static((order.snapshot(), session.places()))
        end, output, session.carry = run(start, session.bundle(), session.carry, args, kwargs)
        order.restore(end.value)
        return output

    return step
