"""The end of a step, compiled: an optimizer's arithmetic, the skip, and the move of the scale, by Inductor.

A fused optimizer skips in its kernel. This does the same for any of torch's own optimizers, and where tensors are small
it is faster: what was there before the step and what comes out of it are chosen between element by element, which the
compiler folds into the kernels of the step itself.
"""

from __future__ import annotations

import functools
import inspect
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from unifiedamp.backend import LossScale

from . import gradients

Optimizer = torch.optim.Optimizer

TRACEABLE = frozenset({"Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "SGD"})
"""Optimizers of ``torch.optim`` whose step is plain arithmetic on tensors."""


def traceable(optimizer: Optimizer) -> bool:
    """Tell whether an optimizer's step can be compiled: one of torch's own, as it comes, on one device."""
    kind = type(optimizer)
    return kind.__name__ in TRACEABLE and kind.__module__.startswith("torch.optim.")


def settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a parameter group must say while its step is compiled."""
    wanted = {"fused": False, "foreach": True, "capturable": True}
    return {name: value for name, value in wanted.items() if name in group}


def settle(optimizer: Optimizer) -> None:
    """Bring counters of steps to the parameters' device, where a compiled step wants them."""
    for param, state in optimizer.state.items():
        step = state.get("step")
        if isinstance(step, torch.Tensor) and step.device != param.device:
            state["step"] = step.to(param.device)


def compiles_in_this_thread() -> bool:
    """Tell whether updates can be compiled here: on a GPU, dynamo asserts on state that only the main thread has."""
    return threading.current_thread() is threading.main_thread() or not torch.cuda.is_available()


def _own(function: Callable[..., None]) -> Callable[..., None]:
    """Return the function with code of its own: dynamo counts compilations by code, over all sessions of a process."""
    made = types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
    return functools.update_wrapper(made, function)


class CompiledUpdate:
    """One optimizer's step, compiled.

    Args:
        optimizer: a traceable one that has had a step, so that its state is there.

    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._compiled: set[tuple[bool, ...]] = set()
        # torch's own wrapper of ``step`` breaks the graph, so that nothing could be fused with it.
        self._native = inspect.unwrap(type(optimizer).step)
        update = types.MethodType(_own(CompiledUpdate._update), self)
        self._step = torch.compile(update, dynamic=False, fullgraph=True)

    def __call__(self, found: torch.Tensor | None) -> None:
        """Apply the step; with ``found`` (float32 scalar), only where it is 0."""
        with torch.no_grad():
            self._step(found)
        self._compiled.add(self._present())

    @property
    def ran(self) -> bool:
        """Whether it has run, and so been compiled, for the gradients that there are."""
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
                    # Not by [param]: where an optimizer keeps nothing, that would add an entry, and compile anew.
                    kept = self._optimizer.state.get(param, {})
                    yield from [each for each in kept.values() if isinstance(each, torch.Tensor)]


class Updates:
    """A session's compiled updates."""

    def __init__(self) -> None:
        self._steps: dict[int, tuple[Any, CompiledUpdate]] = {}
        self.move: Callable[..., None] = torch.compile(_own(move), dynamic=False)

    def of(self, optimizer: Optimizer) -> CompiledUpdate | None:
        """Return the compiled step of an optimizer; None where it cannot be had."""
        known = self._steps.get(id(optimizer))
        if known is not None and known[0] is optimizer.state:
            return known[1]
        if not traceable(optimizer):
            return None
        settle(optimizer)
        update = CompiledUpdate(optimizer)
        self._steps[id(optimizer)] = (optimizer.state, update)
        return update


def move(
    settings: LossScale, scale: torch.Tensor, tracker: torch.Tensor, bad: torch.Tensor, found: torch.Tensor
) -> None:
    """Move the state in place by one iteration, equal to ``settings.next_state``; ``found`` is a float32 0 or 1."""
    low, high = settings.scale_bounds
    failed = found > 0
    run = torch.where(failed, bad + 1, 0)
    good = torch.where(failed, 0, tracker + 1)
    grows = good >= settings.growth_interval
    wide = scale.to(bad.dtype)
    grown = (wide * settings.growth_factor).float().clamp(max=high)
    shrunk = (wide * settings.backoff_factor).float().clamp(min=low)
    scale.copy_(torch.where(grows, grown, torch.where(failed & (run >= settings.hysteresis), shrunk, scale)))
    tracker.copy_(torch.where(grows, 0, good))
    bad.copy_(run)
