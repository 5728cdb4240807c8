"""What ranks that train together must share: compared when a shared model is prepared, and in the first step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from unifiedamp.backend import SessionSpec, errors, rank_settings

from .ranks import TrainingRanks
from .wrapped import groups_of, replicated

NAMED = "backend_options={'torch': {'process_group': ...}}"
SCALE = "the present loss scale"
ITERATION = "the iteration of the schedule"
HISTORIES = "what was loaded of amax histories"
LAYOUT = "the memory layout of parameters"
LOADED = frozenset({SCALE, ITERATION, HISTORIES})
"""What a loaded state changes."""
SHOWN = 16
"""Ranks that a message lists."""


def check_group(ranks: TrainingRanks, models: Iterable[torch.nn.Module]) -> None:
    """Refuse a named process group that lacks a rank with which this one holds a model; asks no other rank.

    Raises:
        PrepareError: naming the ranks that it lacks.
    """
    if ranks.named is None or ranks.named is False:
        return
    members = dist.get_process_group_ranks(ranks.named)
    for group in groups_of(models):
        holders = dist.get_process_group_ranks(group)
        lacking = sorted(set(holders) - set(members))
        if lacking:
            raise errors.PrepareError(
                f"amp.prepare: backend_options.torch.process_group has the ranks {members[:SHOWN]} and lacks "
                f"{lacking[:SHOWN]}, with which rank {dist.get_rank()} trains one model: an "
                "overflow there would be skipped by some ranks only; name a group of all ranks that train it, or none"
            )


def _compare(found: Sequence[Mapping[str, str]], ranks: Sequence[int], call: str) -> None:
    first = found[0]
    for name in first:
        for rank, settings in zip(ranks, found, strict=True):
            if settings.get(name) != first[name]:
                advice = f"make the sessions alike, or name those that train together in {NAMED}"
                if name in LOADED:
                    advice = f"load the session's checkpoint (amp.load_state_dict) on every rank, or {advice}"
                if name == LAYOUT:
                    advice = "use one compile mode and tuning on all ranks"
                raise errors.PrepareError(
                    f"{call}: ranks that train together need the same settings, and {name} is {first[name]} on "
                    f"rank {ranks[0]} and {settings.get(name)} on rank {rank}; {advice}"
                )


def layout_of(models: Iterable[torch.nn.Module], converted: Callable[[torch.nn.Module], bool]) -> str:
    """Return the memory layout in which ``DistributedDataParallel`` sums gradients: element by element, as they lie.

    Args:
        models: to be prepared; torch compares their layouts when they are wrapped.
        converted: returns whether the session changes a model's convolutions to channels last.
    """
    return "; ".join("channels last" if converted(model) else "as made" for model in replicated(models))


class Agreement:
    """Compares what the ranks of a session must share: when a shared model is prepared, and in the first step.

    Models that no wrapper shares are not compared before the first step, which every rank makes, and a checkpoint may
    have been loaded since, on one rank.

    Args:
        ranks: those that train together.
        spec: the session's.

    Attributes:
        iteration: of the session's schedule, where the session goes on.
        histories: what tells the amax histories that were loaded from others.
        layout: of the parameters, see :func:`layout_of`.
    """

    def __init__(self, ranks: TrainingRanks, spec: SessionSpec) -> None:
        self._ranks, self._spec, self._checked = ranks, spec, False
        self.iteration, self.histories, self.layout = 0, "nothing", ""

    def check(self, scale: float, call: str = "amp.prepare") -> None:
        """Refuse settings that differ between ranks; communicates once over each of their groups.

        Args:
            scale: the present loss scale, which a checkpoint may have set.
            call: what the message begins with.

        Raises:
            PrepareError: on every rank of a group, naming the setting, the ranks and their values.
        """
        own = {**rank_settings.settings_of(self._spec), SCALE: f"{scale:g}", ITERATION: str(self.iteration)}
        own[HISTORIES], own[LAYOUT] = self.histories, self.layout
        for group in self._ranks.groups:
            found: list[Any] = [None] * dist.get_world_size(group)
            dist.all_gather_object(found, own, group)
            _compare(found, dist.get_process_group_ranks(group or dist.group.WORLD), call)

    def check_first_step(self, scale: torch.Tensor) -> None:
        """See :meth:`check`; does nothing after the first call."""
        if self._checked:
            return
        if self._ranks.groups:
            self.check(float(scale), "amp.step")
        self._checked = True

    def check_first_unscaled(self) -> None:
        """The same in sessions without a loss scale, of ranks that hold a model together: a state has the iteration of
        a schedule, and amax histories.
        """
        delayed = any(each.compute_dtype == "float8" and each.recipe == "delayed" for each in self._spec.policies)
        if (delayed or self._spec.schedule is not None) and not self._checked:
            if self._ranks.together(False):
                self.check(1.0, "amp.step")
            self._checked = True
