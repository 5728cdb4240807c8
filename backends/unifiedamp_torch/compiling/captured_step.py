"""``amp.compile`` on a GPU: the whole step, from forward to the new loss scale, as one CUDA graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from unifiedamp.backend import Policy, StepOrderState, errors

from ..training.compiled_update import Updates
from ..training.scale_state import DeviceResult
from ..training.steps import CaptureDeferred
from . import signature
from .capture_context import CaptureContext
from .capture_errors import capture_reason
from .capture_state import CaptureState

WARM_UP = 3
"""Uncaptured calls with one signature before it is captured: kernels are chosen, optimizer state is created."""

MOST_GRAPHS = 8
"""Signatures that one step is captured for; calls with others run uncaptured."""


class Key(NamedTuple):
    """What a captured step depends on from call to call.

    Attributes:
        arguments: the description of the arguments.
        order: the order of calls at entry.
        grad_enabled, autocast_enabled: the thread's.
        recorded: what is recorded of the call; None for nothing.
    """

    arguments: Hashable
    order: tuple[Any, ...]
    grad_enabled: bool
    autocast_enabled: bool
    recorded: Hashable


@dataclass
class Graph:
    """One captured step.

    Attributes:
        inputs: the tensors that a replay reads its arguments from.
        output: what the step returned; its tensors are filled by each replay.
        replay: launches the step.
        fixed: what the capture depends on, see ``CaptureContext.fixed``.
        before, after: what Python held when the capture began, and when it ended.
        counted: steps that the host counts in each replay.
        recorded: what each replay records; None for nothing.
    """

    inputs: list[torch.Tensor]
    output: Any
    replay: Callable[[], None]
    fixed: Hashable
    before: CaptureState
    after: CaptureState
    counted: int
    recorded: Any


@dataclass
class Entry:
    """One signature: how often it was called and captured, under which policy last, and its graph once there is one.

    Attributes:
        reason: why it cannot be captured, until the step has run uncaptured.
    """

    calls: int = 0
    captures: int = 0
    failures: int = 0
    graph: Graph | None = None
    refused: bool = False
    reason: str = ""
    policy: Policy | None = None

    def forget_failure(self) -> None:
        """Let the step be captured again: it failed where it ran uncaptured, too."""
        if self.reason:
            self.captures, self.failures, self.reason = self.captures - 1, self.failures - 1, ""


class CapturedStep:
    """A step that is captured once its shapes are known, and replayed from then on.

    Recorded calls have separate graphs, which compute the same and what is recorded.

    The step's Python runs while warming up and while capturing, and not in a replay: side effects in Python (printing,
    appending to lists) are not repeated. Arguments that are tensors are copied in; every other argument is part of the
    signature. Returned tensors are copies, without a graph to differentiate through.

    Args:
        fn: the step; what runs where nothing can be replayed.
        context: what the session's captured steps share.
        order: core's order of calls.
        must_run: returns whether the next step's Python must run, because it is to be inspected.
        updates: compiled ends of steps; None leaves them to the optimizers' own kernels.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        context: CaptureContext,
        order: StepOrderState,
        must_run: Callable[[], bool],
        updates: Updates | None = None,
    ) -> None:
        functools.update_wrapper(self, fn)
        self._fn, self._context, self._order = fn, context, order
        self._must_run, self._updates = must_run, updates
        self._entries: dict[Key, Entry] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step."""
        shared = self._context.steps
        if shared.loaded.pending:
            shared.loaded.meet()
        shared.flags.save_with_regions()
        shared.prepared.masters.attach(shared.prepared.optimizers)
        shared.prepared.compensations.drop_stale()
        tensors, described = signature.split(args, kwargs)
        autocast = torch.is_autocast_enabled(self._context.device_type)
        key = Key(described, self._order.snapshot(), torch.is_grad_enabled(), autocast, self._context.recorder.form())
        entry = self._entries.get(key) or self._add(key)
        graph = None if entry is None or self._must_run() else self._graph(key, entry, args, kwargs, tensors)
        if graph is not None:
            return self._replay(graph, tensors)
        try:
            output = self._context.run(functools.partial(self._fn, *args, **kwargs), self._updates)
        except BaseException:
            if entry is not None:
                entry.forget_failure()
            raise
        if entry is not None and entry.reason:
            self._refuse(key, entry, entry.reason)
        return output

    @property
    def graphs(self) -> list[Graph]:
        """The captured steps, one for each signature that has one."""
        return [entry.graph for entry in self._entries.values() if entry.graph is not None]

    def _add(self, key: Key) -> Entry | None:
        alike = [each for each in self._entries if (each.order, each.recorded) == (key.order, key.recorded)]
        if len(alike) >= MOST_GRAPHS:
            changed = signature.difference(alike[-1].arguments, key.arguments)
            self._warn(
                f"amp.compile: {self._name()} was called with more than {MOST_GRAPHS} signatures; calls with "
                f"further ones run uncaptured ({changed}). Keep shapes fixed (drop_last=True, padding) and pass "
                "numbers that change as tensors"
            )
            return None
        entry = self._entries[key] = Entry()
        return entry

    def _warm_up(self, key: Key) -> int:
        """Return how many uncaptured calls come first; one, where calls that are not recorded have a graph."""
        plain = self._entries.get(key._replace(recorded=None))
        if key.recorded is not None and plain is not None and plain.graph is not None:
            return 1
        return self._context.warm_up(WARM_UP)

    def _graph(
        self, key: Key, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor]
    ) -> Graph | None:
        """Return a graph that may be replayed now, capturing it where needed; None where the call must run."""
        entry.calls += 1
        warm_up, policy = self._warm_up(key), self._context.spec.policy
        switched = entry.policy is not policy and entry.policy != policy
        entry.policy = policy
        if entry.refused or entry.calls <= warm_up:
            return None
        fixed = self._context.fixed()
        if switched or (entry.graph is not None and entry.graph.fixed != fixed):
            if switched:
                entry.captures = 0  # a schedule may switch as often as it likes
            entry.graph = None  # the next one needs its memory
            entry.calls = warm_up  # what changed may have to be compiled, which a capture cannot hold
            return None
        if entry.graph is None:
            entry.graph = self._capture(key, entry, args, kwargs, tensors, fixed)
            return entry.graph
        return entry.graph if entry.graph.before == self._context.state(self._order) else None

    def _capture(
        self, key: Key, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor],
        fixed: Hashable,
    ) -> Graph | None:  # fmt: skip
        entry.captures += 1
        if entry.captures > MOST_GRAPHS:
            self._refuse(
                key, entry, "its parameters, or optimizer settings other than the learning rate, go on changing"
            )
            return None
        context, inputs = self._context, [each.clone() for each in tensors]
        step = self._on(iter(inputs), args, kwargs)
        steps = context.steps.steps
        before, counted = context.state(self._order), steps.counted()
        try:
            steps.begin_capture()
            replay, (output, recorded) = context.capture(step, self._updates, key.recorded is not None)
            after = context.state(self._order)
            return Graph(inputs, output, replay, fixed, before, after, steps.counted() - counted, recorded)
        except BaseException as error:
            context.restore(before, self._order)
            self._after_failure(key, entry, error)
        finally:
            steps.end_capture(counted)
            torch.clear_autocast_cache()
        return None

    def _on(self, inputs: Iterator[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
        """Return the step on the tensors that replays read."""
        filled = [signature.fill(each, inputs) for each in args]
        named = {name: signature.fill(each, inputs) for name, each in kwargs.items()}
        return functools.partial(self._fn, *filled, **named)

    def _after_failure(self, key: Key, entry: Entry, error: BaseException) -> None:
        """Try again later, or note why to refuse; raise what is no Exception.

        Refused is a step that runs uncaptured: an error that it raises there too says nothing about capturing. Under
        ``strict``, where refusing raises, it is refused before it runs, but for objects that no step can train.
        """
        if isinstance(error, CaptureDeferred):
            entry.calls, entry.captures = 0, entry.captures - 1
        elif isinstance(error, Exception):
            entry.failures += 1
            if entry.failures < self._context.attempts:
                return  # the next call is captured
            entry.reason = capture_reason(error, self._context.capturer)
            if self._context.spec.strict and not isinstance(error, errors.PrepareError):
                self._refuse(key, entry, entry.reason)
        else:
            raise error

    def _refuse(self, key: Key, entry: Entry, reason: str) -> None:
        entry.refused, entry.reason = True, ""
        when = "" if key.recorded is None else " where it is recorded"
        self._warn(
            f"amp.compile: {self._name()} cannot be captured in a CUDA graph and runs uncaptured{when}: {reason}"
        )

    def _replay(self, graph: Graph, tensors: list[torch.Tensor]) -> Any:
        for static, tensor in zip(graph.inputs, tensors, strict=True):
            static.copy_(tensor, non_blocking=True)
        self._context.rates.refresh()
        if graph.recorded is not None:
            self._context.recorder.before_replay()
        graph.replay()
        if graph.recorded is not None:
            self._context.recorder.take(graph.recorded)
        self._context.restore(graph.after, self._order)
        self._context.steps.steps.replayed(graph.counted)
        return copied(graph.output, {})

    def _warn(self, message: str) -> None:
        self._context.spec.warn(message, errors.CompileWarning)

    def _name(self) -> str:
        return getattr(self._fn, "__name__", type(self._fn).__name__)


def copied(value: Any, copies: dict[Any, torch.Tensor]) -> Any:
    """Return an output with copies of its tensors and step results, which later replays do not change.

    Args:
        value: the output.
        copies: those made so far, by what they are copies of: a tensor that is returned twice is copied once.
    """
    if isinstance(value, torch.Tensor):
        key = _alias(value)
        if key not in copies:
            copies[key] = value.detach().clone()
        return copies[key]
    if isinstance(value, DeviceResult):
        return value.copied()
    if type(value) in (list, tuple):
        return type(value)([copied(each, copies) for each in value])
    if isinstance(value, dict):
        return type(value)({key: copied(each, copies) for key, each in value.items()})
    return value


def _alias(tensor: torch.Tensor) -> Any:
    """Return what two tensors have in common that are the same memory, seen the same way."""
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or not tensor.numel():
        return id(tensor)
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
