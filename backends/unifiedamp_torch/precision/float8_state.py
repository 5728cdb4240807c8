"""What float8 layers keep from one pass to the next: amax histories, and weights that are cast once a window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from unifiedamp.backend import PlanRow, Policy

from ..distributed.ranks import TrainingRanks
from .float8_gather import GatheredWeights
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
        gathers: weights of ``fully_shard`` are gathered in float8.

    Attributes:
        scaling: of recipe "delayed"; else None.
        weights: the cached weights; None without windows.
        gathered: the weights that are gathered in float8; None where none is.
    """

    def __init__(
        self,
        policy: Policy,
        windows: bool,
        device: torch.device,
        ranks: TrainingRanks,
        scheduled: bool = False,
        gathers: bool = False,
    ) -> None:
        self._windows, self._device, self._ranks, self._scheduled = windows, device, ranks, scheduled
        self._gathers = gathers
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
        self.gathered = GatheredWeights() if in_use and self._gathers else None

    @property
    def in_use(self) -> bool:
        """Whether anything is kept, or may be under a later policy."""
        return self._scheduled or any(each is not None for each in (self.scaling, self.weights, self.gathered))

    def rows(self) -> list[PlanRow]:
        """Return the row of ``amp.explain()`` on what is gathered."""
        if self.gathered is None:
            return []
        value = f"{len(self.gathered)} weights"
        note = "of layers in float8 that fully_shard divides by rows; one all-reduce for all scales after each update"
        return [PlanRow("float8 all-gather", value, "fsdp_pre_all_gather, fsdp_post_all_gather", note=note)]

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
        self._drop()

    def end_iteration(self) -> None:
        """End an iteration that no step ended."""
        if self.scaling is not None:
            self.scaling.end()

    def discard(self) -> None:
        """Discard a window."""
        self._in_step = False
        if self.scaling is not None:
            self.scaling.discard()
        self._drop()

    def _drop(self) -> None:
        for each in (self.weights, self.gathered):
            if each is not None:
                each.drop()

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
        weights = () if self.weights is None else self.weights.state()
        return weights if self.gathered is None else (*weights, self.gathered.fresh)

    def restore_window(self, window: Sequence[bool]) -> None:
        """Restore what :meth:`window` returned."""
        if self.gathered is not None:
            *window, fresh = window
            self.gathered.restore(fresh)
        if self.weights is not None:
            self.weights.set_state(window)
