"""What float8 layers keep from one pass to the next: amax histories, and weights that are cast once a window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from unifiedamp.backend import Policy

from ..distributed.ranks import TrainingRanks
from .float8_scales import DelayedScaling
from .float8_weights import CachedWeights


class Float8State:
    """The state of one session's float8 layers; all of it does nothing in sessions of other policies.

    Args:
        policy: the session's.
        windows: the session accumulates gradients, so weights are cast once for several micro-batches.
        device: the session's.
        ranks: those that train together.
        scheduled: :meth:`follow` may be called.

    Attributes:
        scaling: of recipe "delayed"; else None.
        weights: the cached weights; None without windows.
    """

    def __init__(
        self, policy: Policy, windows: bool, device: torch.device, ranks: TrainingRanks, scheduled: bool = False
    ) -> None:
        self._windows, self._device, self._ranks, self._scheduled = windows, device, ranks, scheduled
        self._in_step = False
        self.follow(policy)

    def follow(self, policy: Policy) -> None:
        """Begin anew under another policy, without histories; layers are added afterwards."""
        in_use = policy.compute_dtype == "float8"
        recipe = policy.float8
        delayed = in_use and recipe.scaling == "delayed"
        scaling = (recipe.amax_history, recipe.margin, self._device, self._ranks)
        self.scaling = DelayedScaling(*scaling) if delayed else None
        self.weights = CachedWeights() if in_use and self._windows else None

    @property
    def in_use(self) -> bool:
        """Whether anything is kept, or may be under a later policy."""
        return self._scheduled or self.scaling is not None or self.weights is not None

    # -- steps -----------------------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Before a step of the session's own."""
        self._in_step = True

    def end_step(self, skipped: torch.Tensor | None, ends_iteration: bool) -> None:
        """After a step: weights may have changed; see ``DelayedScaling.note_step``."""
        self._in_step = False
        if self.scaling is not None:
            self.scaling.note_step(skipped)
            if ends_iteration:
                self.scaling.end()
        if self.weights is not None:
            self.weights.drop()

    def end_iteration(self) -> None:
        """End an iteration that no step ended."""
        if self.scaling is not None:
            self.scaling.end()

    def discard(self) -> None:
        """Discard a window."""
        self._in_step = False
        if self.scaling is not None:
            self.scaling.discard()
        if self.weights is not None:
            self.weights.drop()

    def watch(self, optimizers: Sequence[torch.optim.Optimizer]) -> list[Callable[[], None]]:
        """Take in native steps, of loops that others own; return what ends that."""
        if not self.in_use:
            return []
        return [each.register_step_post_hook(self._after_native_step).remove for each in optimizers]

    def _after_native_step(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not self._in_step:
            self.end_step(None, True)

    # -- compiled and captured steps -------------------------------------------------------------------------------

    def runs_eager(self) -> bool:
        """Return whether a compiled step runs as plain Python: the first one of delayed scaling, which scales otherwise
        than all others.
        """
        return self.scaling is not None and self.scaling.calibrates()

    @contextmanager
    def around_compiled(self) -> Iterator[None]:
        """Around a compiled step."""
        if self.weights is None:
            yield
            return
        with self.weights.cast_before():
            yield

    def fixed(self) -> int:
        """Return what a captured step depends on, besides :meth:`window`."""
        return 0 if self.scaling is None else self.scaling.version

    def window(self) -> tuple[bool, ...]:
        """Return which weights are cast in this window."""
        return () if self.weights is None else self.weights.state()

    def restore_window(self, window: Sequence[bool]) -> None:
        """Restore what :meth:`window` returned."""
        if self.weights is not None:
            self.weights.set_state(window)
