"""``amp.compile`` on a GPU: the whole step, from forward to the new loss scale, as one CUDA graph."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import traceback
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from unifiedamp.backend import CallState, SessionSpec, errors

from ..training.master_weights import Masters
from ..training.native_calls import NativeCalls
from ..training.scale_state import DeviceResult
from ..training.steps import NotYet, Steps
from ..training.thread_mark import ThreadMark
from ..training.update import Updates, compiles_in_this_thread
from . import signature
from .capture_state import Held, Optimizer, Rates, fixed
from .graph import CudaStage

WARM_UP = 3
"""Calls with one signature that run uncaptured before it is captured: kernels are chosen, optimizer state is made."""

MOST_GRAPHS = 8
"""Signatures that one step is captured for; calls with others run uncaptured."""


class Stage(Protocol):
    """Where steps are captured, see ``graph.CudaStage``."""

    def run(self, fn: Callable[[], Any]) -> Any:
        """Run ``fn`` where it will be captured."""

    def capture(self, fn: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Capture ``fn``; return its replay and its output."""


@dataclass
class Ground:
    """What the captured steps of one session share.

    Attributes:
        stage: where to capture.
        rates: the optimizers' learning rates on the device.
        models, optimizers: the prepared ones; the session adds to these lists.
        steps: the session's steps.
        spec: to warn through.
        masters: the session's float32 master weights.
        native: the session's look at native calls.
        mark: what holds for the thread where a step begins.
    """

    stage: Stage
    rates: Rates
    models: Sequence[torch.nn.Module]
    optimizers: Sequence[Optimizer]
    steps: Steps
    spec: SessionSpec
    masters: Masters = field(default_factory=Masters)
    native: NativeCalls = field(default_factory=lambda: NativeCalls(False, Masters()))
    mark: ThreadMark = field(default_factory=lambda: ThreadMark("cuda"))

    @classmethod
    def of(cls, device: torch.device, *shared: Any) -> Ground:
        """Return the ground of a session on a CUDA device; see the attributes for what is shared."""
        return cls(CudaStage(device), Rates(device), *shared)

    def parameters(self) -> list[torch.Tensor]:
        """Return the parameters of all optimizers, in order."""
        return [param for optimizer in self.optimizers for group in optimizer.param_groups for param in group["params"]]

    @contextlib.contextmanager
    def lent(self, updates: Updates | None) -> Iterator[None]:
        """Have optimizers and steps as a capture wants them; put back on exit."""
        kept: list[Any] = []
        before = self.steps.updates
        try:
            self.rates.lend(self.optimizers, updates is not None, kept)
            self.steps.use(updates)
            yield
        finally:
            self.steps.use(before)
            self.rates.give_back(kept)

    def held(self, window: CallState) -> Held:
        """Return what Python holds now."""
        gradients = [param.grad for param in self.parameters()]
        return Held(gradients, self.steps.records(), window.snapshot(), self.native.pending())

    def restore(self, held: Held, window: CallState) -> None:
        """Make Python hold what it held then."""
        for param, grad in zip(self.parameters(), held.gradients, strict=True):
            if param.grad is not grad:
                param.grad = grad
        self.steps.hold(held.records)
        self.native.restore(held.pending)
        window.restore(held.window)


@dataclass
class Graph:
    """One captured step.

    Attributes:
        inputs: the tensors that a replay reads its arguments from.
        output: what the step returned; its tensors are filled by each replay.
        replay: launches the step.
        fixed: what the capture took for granted, see ``held.fixed``.
        before, after: what Python held when the capture began, and when it ended.
        counted: steps that the host counts in each replay.
    """

    inputs: list[torch.Tensor]
    output: Any
    replay: Callable[[], None]
    fixed: Hashable
    before: Held
    after: Held
    counted: int


@dataclass
class Entry:
    """One signature: how often it was seen and captured, and its graph once there is one."""

    calls: int = 0
    captures: int = 0
    graph: Graph | None = None
    refused: bool = False


class CapturedStep:
    """A step that is captured once its shapes are known, and replayed from then on.

    The step's Python runs while warming up and while capturing, and not in a replay: what it does besides asking things
    of the device (printing, appending to lists) is not repeated. Arguments that are tensors are copied in; every other
    argument is part of the signature. Returned tensors are copies, without a graph to differentiate through.

    Args:
        fn: the step; what runs wherever nothing can be replayed.
        ground: what the session's captured steps share.
        window: core's order of calls.
        diagnosing: tells whether the next step should be looked into, which a replay cannot.
        updates: compiled ends of steps, to be used in this one; None leaves them to the optimizers' own kernels.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        ground: Ground,
        window: CallState,
        diagnosing: Callable[[], bool],
        updates: Updates | None = None,
    ) -> None:
        functools.update_wrapper(self, fn)
        self._updates = updates
        self._fn, self._ground, self._window, self._diagnosing = fn, ground, window, diagnosing
        self._entries: dict[Hashable, Entry] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step."""
        self._ground.mark.set_with_regions()
        self._ground.masters.enter(self._ground.optimizers)
        tensors, described = signature.split(args, kwargs)
        snapshot = self._window.snapshot()
        key = (described, snapshot, torch.is_grad_enabled(), torch.is_autocast_enabled("cuda"))
        entry = self._entries.get(key) or self._add(key)
        graph = None if entry is None or self._diagnosing() else self._graph(entry, args, kwargs, tensors)
        if graph is None:
            return self._uncaptured(args, kwargs)
        return self._replay(graph, tensors)

    def _uncaptured(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        run = functools.partial(self._fn, *args, **kwargs)
        updates = self._usable_updates()
        if updates is None:
            return self._ground.stage.run(run)
        with self._ground.lent(updates):
            return self._ground.stage.run(run)

    def _usable_updates(self) -> Updates | None:
        return self._updates if compiles_in_this_thread() else None

    def _add(self, key: Hashable) -> Entry | None:
        if len(self._entries) >= MOST_GRAPHS * self._places():
            changed = signature.difference(next(reversed(self._entries))[0], key[0])  # type: ignore[index]
            self._warn(
                f"amp.compile: {self._name()} was called with more than {MOST_GRAPHS} signatures; calls with "
                f"further ones run uncaptured ({changed}). Keep shapes fixed (drop_last=True, padding) and pass "
                "numbers that change as tensors"
            )
            return None
        entry = self._entries[key] = Entry()
        return entry

    def _places(self) -> int:
        """How many orders of calls the step was entered in: the places of an accumulation window."""
        return len({key[1] for key in self._entries}) or 1  # type: ignore[index]

    def _graph(
        self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor]
    ) -> Graph | None:
        """Return a graph that may be replayed now, capturing it where needed; None where the call must run."""
        entry.calls += 1
        if entry.refused or entry.calls <= WARM_UP:
            return None
        ground = self._ground
        taken = (fixed(ground.models, ground.optimizers, ground.masters), ground.steps.remembers)
        if entry.graph is not None and entry.graph.fixed != taken:
            entry.graph = None  # its memory is wanted by the next one
            entry.calls = WARM_UP  # what changed may have to be compiled, which a capture cannot
            return None
        if entry.graph is None:
            entry.graph = self._capture(entry, args, kwargs, tensors, taken)
            return entry.graph
        return entry.graph if entry.graph.before == ground.held(self._window) else None

    def _capture(
        self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor], taken: Hashable
    ) -> Graph | None:
        entry.captures += 1
        if entry.captures > MOST_GRAPHS:
            self._refuse(entry, "its parameters, or optimizer settings other than the learning rate, go on changing")
            return None
        ground, inputs = self._ground, [each.clone() for each in tensors]
        left = iter(inputs)
        filled = [signature.fill(each, left) for each in args]
        named = {name: signature.fill(each, left) for name, each in kwargs.items()}
        before, counted = ground.held(self._window), ground.steps.counted()
        try:
            ground.steps.begin_capture()
            with ground.lent(self._usable_updates()), uncollected():
                replay, output = ground.stage.capture(lambda: self._fn(*filled, **named))
            after = ground.held(self._window)
            return Graph(inputs, output, replay, taken, before, after, ground.steps.counted() - counted)
        except NotYet:
            entry.calls, entry.captures = 0, entry.captures - 1
            ground.restore(before, self._window)
        except Exception as error:
            ground.restore(before, self._window)
            self._refuse(entry, _reason(error, ground.stage))
        except BaseException:
            ground.restore(before, self._window)
            raise
        finally:
            ground.steps.end_capture(counted)
            torch.clear_autocast_cache()
        return None

    def _refuse(self, entry: Entry, reason: str) -> None:
        entry.refused = True
        self._warn(f"amp.compile: {self._name()} cannot be captured in a CUDA graph and runs uncaptured: {reason}")

    def _replay(self, graph: Graph, tensors: list[torch.Tensor]) -> Any:
        for static, tensor in zip(graph.inputs, tensors, strict=True):
            static.copy_(tensor, non_blocking=True)
        self._ground.rates.refresh()
        graph.replay()
        self._ground.restore(graph.after, self._window)
        self._ground.steps.replayed(graph.counted)
        return copied(graph.output)

    def _warn(self, message: str) -> None:
        self._ground.spec.warn(message, errors.CompileWarning)

    def _name(self) -> str:
        return getattr(self._fn, "__name__", type(self._fn).__name__)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Keep Python's garbage collector from running: to free pinned memory or a graph is to ask things of the device."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def copied(value: Any) -> Any:
    """Return an output whose tensors and step results later replays leave alone."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, DeviceResult):
        return value.copied()
    if type(value) in (list, tuple):
        return type(value)([copied(each) for each in value])
    if isinstance(value, dict):
        return type(value)({key: copied(each) for key, each in value.items()})
    return value


def _reason(error: BaseException, stage: Stage) -> str:
    """Return the user's line that an error came from, and the error's first line."""
    message = str(error).strip().partition("\n")[0] or type(error).__name__
    if "captur" in message and not isinstance(error, errors.AmpError):
        message = f"it makes the host wait for the device, or asks for what a graph cannot hold ({message})"
    line = _user_line(error, stage)
    return f"{line}: {message}" if line else message


def _user_line(error: BaseException, stage: Stage) -> str:
    folders = [str(Path(file).parent) for file in (torch.__file__, __file__, errors.__file__)]
    ours = (*folders, inspect.getfile(type(stage)))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    if not frames:
        return ""
    last = frames[-1]
    return f"{last.filename}:{last.lineno}: `{(last.line or '').strip()}`"
