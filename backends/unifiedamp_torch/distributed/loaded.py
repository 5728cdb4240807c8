"""A state that some ranks load and others do not: their scales would differ for good, and their updates diverge.

Only the ranks that load know of it. Before their next loss they wait for the others in the store of
``torch.distributed``, and no other rank does. Where the others do not come, the loss is made nan: all ranks then skip
the step, since gradients are reduced, or what was found in them is. Where the host reads that steps were skipped, each
rank looks into the store for the reason.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from unifiedamp.backend import ScaleState, errors

from .agreement import Agreement, compare
from .ranks import TrainingRanks

PATIENCE = timedelta(seconds=10)
"""How long a rank waits for others to load. They may come later: a step is skipped then, and no more."""


class LoadedStates:
    """Notices where ranks that train together do not load the same state before the same step.

    Args:
        ranks: those that train together.
        agreement: what they must share; it compares what was loaded before the first step.
        scaled: steps can be skipped.

    Attributes:
        pending: a state was loaded since the last loss.
        alone: this rank waited for the others in vain.
    """

    def __init__(self, ranks: TrainingRanks, agreement: Agreement, scaled: bool) -> None:
        self._ranks, self._agreement, self._scaled = ranks, agreement, scaled
        self.pending = self.alone = False
        self._count = self._skipped = 0
        self._own: dict[str, str] = {}  # what was loaded last; a step that is skipped changes the scale

    def note(self, state: ScaleState) -> None:
        """Note that a state was loaded."""
        self._skipped = state.skipped_steps
        self.pending = self._compared()

    def _compared(self) -> bool:
        """Return whether this rank trains with others, and their first step has been."""
        agreement = self._agreement
        return agreement.checked and len(agreement.members) > 1 and self._ranks.together(self._scaled)

    def meet(self) -> None:
        """Wait for the other ranks to load; before the first loss since a state was loaded.

        Raises:
            PrepareError: they loaded other states.
            CheckpointError: they loaded none, where no step can be skipped.
        """
        self._count += 1
        self.pending, self.alone = False, False
        own, meeting = self._agreement.loaded(), self._meeting(self._count)
        self._own = own
        meeting.post(own)
        if meeting.wait(PATIENCE if self._scaled else None):
            return
        meeting.give_up(own)
        if not self._scaled:
            meeting.refuse_absent(own)
        self.alone = True

    def spoils(self) -> bool:
        """Return whether the next loss must be made nan: the others did not load, and have not done so since."""
        self.alone = self.alone and not self._meeting(self._count).complete()
        return self.alone

    def check_skips(self, state: ScaleState) -> None:
        """Refuse to go on where a step was skipped because some ranks loaded a state; else does nothing.

        Raises:
            CheckpointError: naming the ranks.
            PrepareError: they loaded other states.
        """
        before, self._skipped = self._skipped, state.skipped_steps
        if state.skipped_steps > before and self._compared():
            self._refuse()

    def _refuse(self) -> None:
        """Refuse to go on if this rank loaded and others did not, or the reverse."""
        if self.spoils():
            self._meeting(self._count).refuse_absent(self._own)
        elif (meeting := self._meeting(self._count + 1)).given_up():
            self._count += 1  # so that the states loaded next are compared
            meeting.refuse_given_up()

    def _meeting(self, count: int) -> Meeting:
        return Meeting(f"unifiedamp/loaded/{self._agreement.name}/{count}", self._agreement.members)


class Meeting:
    """A state that ranks load together, in the store.

    Args:
        name: begins its keys.
        ranks: their numbers.
    """

    def __init__(self, name: str, ranks: list[int]) -> None:
        self._store: Any = dist.distributed_c10d._get_default_store()
        self._keys = {rank: f"{name}/{rank}" for rank in ranks}
        self._unmet = f"{name}/unmet"
        self._own = dist.get_rank()

    def post(self, values: Mapping[str, str]) -> None:
        """Say what this rank loaded."""
        self._store.set(self._keys[self._own], json.dumps(dict(values)))

    def wait(self, limit: timedelta | None) -> bool:
        """Return whether all ranks have loaded; waits for them, None for as long as the store does.

        Raises:
            PrepareError: see :meth:`complete`.
        """
        with contextlib.suppress(RuntimeError):  # DistStoreError
            self._store.wait(list(self._keys.values()), *([] if limit is None else [limit]))
        return self.complete()

    def complete(self) -> bool:
        """Return whether all ranks have loaded.

        Raises:
            PrepareError: they have, and other states than this rank, naming the setting, the ranks and their values.
        """
        if not self._store.check(list(self._keys.values())):
            return False
        found = [json.loads(self._store.get(key)) for key in self._keys.values()]
        compare(found, list(self._keys), "amp.load_state_dict")
        return True

    def give_up(self, values: Mapping[str, str]) -> None:
        """Say that this rank, which loaded ``values``, no longer waits."""
        self._store.set(self._unmet, json.dumps([self._own, values]))

    def given_up(self) -> bool:
        """Return whether a rank that loaded no longer waits."""
        return bool(self._store.check([self._unmet]))

    def refuse_absent(self, own: Mapping[str, str]) -> None:
        """Refuse to go on where ranks have not loaded; ``own``: what this rank loaded.

        Raises:
            CheckpointError: naming one.
        """
        lacking = [rank for rank, key in self._keys.items() if not self._store.check([key])]
        if lacking:
            raise _loaded_alone(self._own, own, f"rank {lacking[0]} did not")

    def refuse_given_up(self) -> None:
        """Refuse to go on where a rank loaded and gave up waiting.

        Raises:
            CheckpointError: naming it.
        """
        rank, values = json.loads(self._store.get(self._unmet))
        raise _loaded_alone(rank, values, f"rank {self._own} did not")


def _loaded_alone(rank: int, values: Mapping[str, str], other: str) -> errors.CheckpointError:
    return errors.CheckpointError(
        f"amp.load_state_dict: rank {rank} loaded a state ({_shown(values)}) after the first step, and {other}: their "
        "loss scales would differ for good. No step was applied since. Load the session's state on every rank before "
        "the same step; that goes on from here. Ranks that train separate models need "
        "backend_options={'torch': {'process_group': False}}"
    )


def _shown(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} is {value}" for name, value in values.items())
