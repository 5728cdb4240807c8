"""What a thread computes under; saved where a call begins, restored where it is interrupted.

Separate from the regions: dynamo traces those, and what restores a thread must run as it is written.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Mapping
from typing import NamedTuple

import torch

_Region = tuple[torch.autocast, Mapping[str, str] | None, list[torch.autocast], torch.dtype | None]


class _Entered(threading.local):
    """The native regions that a thread is in, innermost last, with what each needs on exit and its dtype (None without
    autocast), and the thread's active op overrides.
    """

    def __init__(self) -> None:
        self.stack: list[_Region] = []
        self.overrides: Mapping[str, str] | None = None
        self.in_compiled_step = False


entered = _Entered()


_CALL = operator.methodcaller("__call__")
_UP_AND_DOWN = (torch.autocast_increment_nesting, torch.autocast_decrement_nesting)


def nesting() -> int:
    """Return how many native regions this thread is in; the outermost one's exit clears autocast's cache."""
    # C code calls both, so that no signal handler runs between them and leaves the level one too high.
    levels: list[int] = list(map(_CALL, _UP_AND_DOWN))
    return levels[1]


class ThreadState(NamedTuple):
    """What a thread computes under: gradients, autocast, and the regions it is in.

    torch's contexts (``no_grad``, ``autocast``) set several flags in Python on entry and on exit. A signal between two
    of them leaves gradients off, or casts of old weights in autocast's cache, for the rest of the process.
    """

    device_type: str
    grad_enabled: bool
    autocast_enabled: bool
    dtype: torch.dtype
    cache_enabled: bool
    nesting: int
    depth: int
    overrides: Mapping[str, str] | None
    in_compiled_step: bool

    @classmethod
    def read(cls, device_type: str) -> ThreadState:
        """Return this thread's."""
        return cls(
            device_type,
            torch.is_grad_enabled(),
            torch.is_autocast_enabled(device_type),
            torch.get_autocast_dtype(device_type),
            torch.is_autocast_cache_enabled(),
            nesting(),
            len(entered.stack),
            entered.overrides,
            entered.in_compiled_step,
        )

    def restore(self) -> None:
        """Restore it in the thread that it was read in."""
        torch.set_grad_enabled(self.grad_enabled)
        entered.overrides, entered.in_compiled_step = self.overrides, self.in_compiled_step
        torch.set_autocast_enabled(self.device_type, self.autocast_enabled)
        torch.set_autocast_dtype(self.device_type, self.dtype)
        torch.set_autocast_cache_enabled(self.cache_enabled)
        while nesting() > self.nesting:
            torch.autocast_decrement_nesting()
        while nesting() < self.nesting:
            torch.autocast_increment_nesting()
        torch.clear_autocast_cache()
        del entered.stack[self.depth :]
