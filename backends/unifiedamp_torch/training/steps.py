"""Optimizer steps: what they have in common, and steps without a loss scaler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from unifiedamp.backend import ScaleState, StepResult, errors, result

from . import gradients
from .native_calls import run_step
from .update import CompiledUpdate, Updates

Optimizer = torch.optim.Optimizer


UNCOUNTED = -1
"""What :func:`versions` is where nothing counts changes of parameters, as in fused and in compiled updates."""


def versions(optimizer: Optimizer) -> int:
    """Return a number that changes with every change of the optimizer's parameters in place, or ``UNCOUNTED``."""
    if any(group.get("fused") for group in optimizer.param_groups):
        return UNCOUNTED
    return sum([param._version for group in optimizer.param_groups for param in group["params"]])


class NotYet(Exception):
    """The step being captured needs one more step run by the host before it can be captured."""


def check_capturable(optimizer: Any, ready: bool) -> None:
    """Refuse to capture a step that the host takes part in."""
    if not ready:
        name = type(optimizer).__name__
        raise errors.UnsupportedError(
            f"amp.step: the host takes part in a step of this {name}; make it with fused=True"
        )


class Steps:
    """What steps have in common: compiled updates, and the part that the host plays in a capture.

    A captured step is not done by the host, but the host keeps things beside the device: what was found in gradients in
    this iteration, and counts. ``capture.py`` saves them, and puts them back after each replay.

    Attributes:
        capturing: steps are being captured and not done.
        remembers: what is known of a skipped step is kept on the device.
        updates: the compiled updates in use.
    """

    def __init__(self) -> None:
        self.capturing = self.remembers = False
        self._settled: set[int] = set()
        self.updates: Updates | None = None
        self._updating: tuple[Optimizer, int] | None = None

    def use(self, updates: Updates | None) -> Updates | None:
        """Have steps done by compiled updates, or no longer; return what was used before."""
        before, self.updates = self.updates, updates
        return before

    def _compiled(self, optimizer: Optimizer) -> CompiledUpdate | None:
        """Return the optimizer's compiled step where it is wanted; its first step makes its state, uncompiled."""
        if self.updates is None or id(optimizer) not in self._settled or gradients.any_sparse(optimizer):
            return None  # torch.compile takes no sparse tensors
        update = self.updates.of(optimizer)
        if update is not None and self.capturing and not update.ran:
            raise NotYet  # compiling asks for what a graph cannot hold
        return update

    def _update(self, optimizer: Optimizer, versions: int, run: Callable[..., Any], *args: Any) -> None:
        """Have ``run(*args)`` update the optimizer's parameters, whose :func:`versions` are these."""
        self._updating = (optimizer, versions)
        run(*args)
        self._updating = None

    def partly_updated(self, optimizers: Sequence[Optimizer]) -> bool:
        """Tell whether an update of one of these began, changed parameters and did not end."""
        if self._updating is None or self.capturing:
            return False
        optimizer, before = self._updating
        return any(each is optimizer for each in optimizers) and (before == UNCOUNTED or versions(optimizer) != before)

    def forget_update(self) -> None:
        """Go on with the parameters as an update left them that did not end."""
        self._updating = None

    def records(self) -> dict[int, dict[str, Any]]:
        """Return what was found in gradients so far in this iteration, by optimizer."""
        return {}

    def hold(self, records: Mapping[int, Mapping[str, Any]]) -> None:
        """Take over what :meth:`records` returned."""

    def begin_capture(self) -> None:
        """Note that the steps to come are captured and not done."""
        self.capturing = True

    def counted(self) -> int:
        """Return how many steps the host has counted."""
        return 0

    def end_capture(self, counted: int) -> None:
        """Forget the steps that were captured; ``counted`` is what :meth:`counted` returned before."""
        self.capturing = False
        self._updating = None

    def replayed(self, counted: int) -> None:
        """Count the steps that a replay did."""


class PlainSteps(Steps):
    """Steps without loss scaling: no factor, no finite check, each step with gradients is applied."""

    _APPLIED = StepResult.of(True, False, result.APPLIED, 1.0, 1.0)

    def __init__(self) -> None:
        super().__init__()
        self._state = ScaleState()
        self._applied = 0

    def unscale(self, optimizer: Optimizer) -> None:
        """Nothing to divide by."""

    def step(self, optimizer: Optimizer, update: bool) -> StepResult | None:
        """Apply the step; None when there are no gradients."""
        if not gradients.any_there(optimizer):
            return None
        compiled = self._compiled(optimizer)
        if compiled is not None:
            self._update(optimizer, UNCOUNTED, compiled, None)
        else:
            if self.capturing:
                groups = optimizer.param_groups
                check_capturable(optimizer, all(group.get("fused") or group.get("capturable") for group in groups))
            self._update(optimizer, versions(optimizer), run_step, optimizer)
            self._settled.add(id(optimizer))
        gradients.drop(optimizer)
        self._applied += 1
        return self._APPLIED

    def update(self) -> None:
        """Nothing to move."""

    def drop(self, optimizer: Optimizer) -> None:
        """Empty the gradients."""
        gradients.drop(optimizer)

    def settle(self) -> None:
        """There is no scale that an interrupted step could leave half moved."""

    def mark(self) -> float:
        """Return the scale."""
        return 1.0

    def peek(self) -> ScaleState:
        """Return the counts."""
        return self.read()

    def read(self) -> ScaleState:
        """Return the counts."""
        state = self._state
        return ScaleState(1.0, 0, 0, state.applied_steps + self._applied, state.skipped_steps)

    def write(self, state: ScaleState) -> None:
        """Take over the counts."""
        self._state, self._applied = state, 0

    def counted(self) -> int:
        """See ``Steps``."""
        return self._applied

    def end_capture(self, counted: int) -> None:
        """See ``Steps``."""
        super().end_capture(counted)
        self._applied = counted

    def replayed(self, counted: int) -> None:
        """See ``Steps``."""
        self._applied += counted
