"""The end of a step, compiled by Inductor: an optimizer's arithmetic, the skip, and the update of the scale.

A fused optimizer skips in its kernel. This does the same for any of torch's own optimizers, and is faster where tensors
are few and small: each element is selected from its value before the step or after it, which the compiler fuses into
the kernels of the step. Where there are more tensors, compiling takes longer than the model does and gains nothing; the
fused kernel is used then, if the optimizer has one.
"""

from __future__ import annotations

import functools
import inspect
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ..device.fused_optimizers import why_not_fused
from ..device.placement import steps_to_device
from . import gradients
from .scale_transition import update_scale_by_formula

Optimizer = torch.optim.Optimizer

TRACEABLE = frozenset({"Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "SGD"})
"""Optimizers of ``torch.optim`` whose step is plain arithmetic on tensors."""


def traceable(optimizer: Optimizer) -> bool:
    """Return whether an optimizer's step can be compiled: its class is torch's own, not a subclass."""
    kind = type(optimizer)
    return kind.__name__ in TRACEABLE and kind.__module__.startswith("torch.optim.")


MOST_TENSORS = 32
"""Parameters up to which the step of an optimizer that has a fused kernel is compiled."""


def compiles(optimizer: Optimizer) -> bool:
    """Return whether an optimizer's step is compiled; one that could be and is not runs its fused kernel."""
    if not traceable(optimizer):
        return False
    return sum(1 for _ in gradients.parameters(optimizer)) <= MOST_TENSORS or bool(why_not_fused(optimizer))


def settings(group: Mapping[str, Any], compiled: bool) -> dict[str, Any]:
    """Return the settings that a parameter group needs while its step is ``compiled``, or runs its fused kernel."""
    wanted = {"fused": not compiled, "foreach": compiled, "capturable": True}
    return {name: value for name, value in wanted.items() if name in group}


def compiles_in_this_thread() -> bool:
    """Return whether updates can be compiled here: on a GPU, dynamo asserts on state that only the main thread has."""
    return threading.current_thread() is threading.main_thread() or not torch.cuda.is_available()


def _with_new_code(function: Callable[..., None]) -> Callable[..., None]:
    """Return a copy with a new code object: dynamo counts compilations by code, over all sessions of a process."""
    made = types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
    return functools.update_wrapper(made, function)


class CompiledUpdate:
    """One optimizer's step, compiled.

    Args:
        optimizer: a traceable one that has had a step, so that its state exists.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._compiled: set[tuple[bool, ...]] = set()
        # torch's own wrapper of ``step`` breaks the graph, so that nothing could be fused with it.
        self._native = inspect.unwrap(type(optimizer).step)
        update = types.MethodType(_with_new_code(CompiledUpdate._update), self)
        self._step = torch.compile(update, dynamic=False, fullgraph=True)

    def __call__(self, found: torch.Tensor | None) -> None:
        """Apply the step; with ``found`` (float32 scalar), only where it is 0."""
        with torch.no_grad():
            self._step(found)
        self._compiled.add(self._present())

    @property
    def ran(self) -> bool:
        """Whether it has run, and so been compiled, for the present gradients."""
        return self._present() in self._compiled

    def _present(self) -> tuple[bool, ...]:
        return tuple([param.grad is not None for param in gradients.parameters(self._optimizer)])

    def _update(self, found: torch.Tensor | None) -> None:
        if found is None:
            self._native(self._optimizer)
            return
        kept = [(tensor, tensor.clone()) for tensor in self._tensors()]
        self._native(self._optimizer)
        for tensor, before in kept:
            tensor.copy_(torch.where(found > 0, before, tensor))

    def _tensors(self) -> Iterator[torch.Tensor]:
        for group in self._optimizer.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    yield param
                    # Not by [param]: where an optimizer keeps no state, that would add an entry, and recompile.
                    kept = self._optimizer.state.get(param, {})
                    yield from [each for each in kept.values() if isinstance(each, torch.Tensor)]


class Updates:
    """A session's compiled updates."""

    def __init__(self) -> None:
        self._steps: dict[int, tuple[Any, CompiledUpdate]] = {}
        self.update_scale: Callable[..., None] = torch.compile(_with_new_code(update_scale_by_formula), dynamic=False)

    def of(self, optimizer: Optimizer) -> CompiledUpdate | None:
        """Return the compiled step of an optimizer; None where it cannot be compiled."""
        known = self._steps.get(id(optimizer))
        if known is not None and known[0] is optimizer.state:
            return known[1]
        if not compiles(optimizer):
            return None
        steps_to_device(optimizer)
        update = CompiledUpdate(optimizer)
        self._steps[id(optimizer)] = (optimizer.state, update)
        return update
