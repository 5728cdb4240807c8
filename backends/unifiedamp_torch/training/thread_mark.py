"""What holds for the thread where a call of the session begins, put back where the call was interrupted.

torch's contexts (``no_grad``, ``autocast``) set several things in Python on entering and on leaving. A signal between
two of them leaves gradients off, or casts of old weights in autocast's cache, for the rest of the process.
"""

from __future__ import annotations

from typing import Any

import torch

from ..precision.autocast import entered


class ThreadMark:
    """The last mark of a session.

    Args:
        device_type: the session's, whose autocast state is marked.
    """

    def __init__(self, device_type: str) -> None:
        self._kind = device_type
        self._grad = True
        self._regions: tuple[Any, ...] | None = None

    def set(self) -> None:
        """Mark whether gradients are recorded, in a call that enters no region."""
        self._grad = torch.is_grad_enabled()

    def set_with_regions(self) -> None:
        """Mark also what regions the thread is in."""
        self._grad = torch.is_grad_enabled()
        self._regions = (
            torch.is_autocast_enabled(self._kind),
            torch.get_autocast_dtype(self._kind),
            torch.is_autocast_cache_enabled(),
            _nesting(),
            len(entered.stack),
            entered.overrides,
            entered.in_compiled_step,
        )

    def leave_regions(self) -> None:
        """Forget the regions: the call ended, and they may be left."""
        self._regions = None

    def put_back(self) -> None:
        """Make everything what it was at the mark."""
        torch.set_grad_enabled(self._grad)
        if self._regions is None:
            return
        enabled, dtype, cache, nesting, depth, entered.overrides, entered.in_compiled_step = self._regions
        torch.set_autocast_enabled(self._kind, enabled)
        torch.set_autocast_dtype(self._kind, dtype)
        torch.set_autocast_cache_enabled(cache)
        while _nesting() > nesting:
            torch.autocast_decrement_nesting()
        while _nesting() < nesting:
            torch.autocast_increment_nesting()
        torch.clear_autocast_cache()
        del entered.stack[depth:]


def _nesting() -> int:
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()
