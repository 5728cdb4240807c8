"""What ranks that train together must share: compared when a shared model is prepared, and in the first step."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from unifiedamp.backend import ScaleState, SessionSpec, errors, rank_settings

from .ranks import TrainingRanks
from .step_counts import arrive, wait_for
from .wrapped import groups_of, replicated

NAMED = "backend_options={'torch': {'process_group': ...}}"
SCALE = "the present loss scale"
GOOD = "the number of good steps in a row"
ITERATION = "the iteration of the schedule"
HISTORIES = "what was loaded of amax histories"
LAYOUT = "the memory layout of parameters"
LOADED = frozenset({SCALE, GOOD, ITERATION, HISTORIES})
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


def compare(found: Sequence[Mapping[str, str]], ranks: Sequence[int], call: str) -> None:
    """Refuse settings that differ.

    Args:
        found: for each rank, name → value.
        ranks: their numbers.
        call: what the message begins with.

    Raises:
        PrepareError: naming the setting, the ranks and their values.
    """
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
        state: returns the present loss scale and its counts, which a checkpoint may have set.
        checked: whether the ranks were compared in the first step.
        name, members: of all ranks that were compared, directly or by way of others: a name that no others have, and
            their numbers.
        iteration: of the session's schedule, where the session goes on.
        histories: what tells the amax histories that were loaded from others.
        layout: of the parameters, see :func:`layout_of`.
    """

    def __init__(self, ranks: TrainingRanks, spec: SessionSpec) -> None:
        self._ranks, self._spec = ranks, spec
        self.state: Callable[[], ScaleState] = ScaleState
        self.checked = False
        self.name, self.members = "", [0]
        self.iteration, self.histories, self.layout = 0, "nothing", ""

    def loaded(self) -> dict[str, str]:
        """Return what a loaded state changes: name → present value."""
        state = self.state()
        return {
            SCALE: f"{state.scale:g}", GOOD: str(state.good_steps), ITERATION: str(self.iteration),
            HISTORIES: self.histories,
        }  # fmt: skip

    def check(self, call: str = "amp.prepare") -> None:
        """Refuse settings that differ between ranks; communicates once over each of their groups.

        Args:
            call: what the message begins with.

        Raises:
            PrepareError: on every rank of a group, naming the setting, the ranks and their values.
        """
        own = {**rank_settings.settings_of(self._spec), **self.loaded(), LAYOUT: self.layout}
        name, members = uuid.uuid4().hex, [dist.get_rank()]
        for group in self._ranks.groups:
            found: list[Any] = [None] * dist.get_world_size(group)
            dist.all_gather_object(found, (own, name, members), group)
            compare([each for each, *_ in found], dist.get_process_group_ranks(group or dist.group.WORLD), call)
            name, members = found[0][1], sorted({rank for *_, ranks in found for rank in ranks})
        self.name, self.members = name, members

    def check_first_step(self) -> None:
        """See :meth:`check`; does nothing after the first call."""
        if self.checked:
            return
        if self._ranks.groups:
            if self.name:
                arrive(self.name, "first")
                wait_for(self.name, "first", self.members, "waits in its first step, and", "come to one")
            self.check("amp.step")
        self.checked = True

    def check_first_unscaled(self) -> None:
        """The same in sessions without a loss scale, of ranks that hold a model together: a state has the iteration of
        a schedule, and amax histories.
        """
        delayed = any(each.compute_dtype == "float8" and each.recipe == "delayed" for each in self._spec.policies)
        if (delayed or self._spec.schedule is not None) and not self.checked:
            if self._ranks.together(False):
                self.check("amp.step")
            self.checked = True
