"""What holds for the thread where a call of the session begins, restored where the call was interrupted.

torch's contexts (``no_grad``, ``autocast``) set several flags in Python on entry and on exit. A signal between two of
them leaves gradients off, or casts of old weights in autocast's cache, for the rest of the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from ..precision.autocast import entered, nesting, restore_nesting


class RegionFlags(NamedTuple):
    """The autocast state of a thread."""

    enabled: bool
    dtype: torch.dtype
    cache_enabled: bool
    nesting: int
    depth: int
    overrides: Mapping[str, str] | None
    in_compiled_step: bool


class ThreadFlags:
    """The flags that the session's last call found.

    Args:
        device_type: the session's, whose autocast state is saved.

    Attributes:
        grad_enabled: whether gradients were recorded; calls set it where they begin.
        regions: the autocast state, for calls that enter regions; None for others.
    """

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self.grad_enabled = True
        self.regions: RegionFlags | None = None

    def save_with_regions(self) -> RegionFlags:
        """Save the present flags, for a call that enters regions; return those of autocast."""
        self.grad_enabled = torch.is_grad_enabled()
        self.regions = RegionFlags(
            torch.is_autocast_enabled(self._device_type),
            torch.get_autocast_dtype(self._device_type),
            torch.is_autocast_cache_enabled(),
            nesting(),
            len(entered.stack),
            entered.overrides,
            entered.in_compiled_step,
        )
        return self.regions

    def restore(self, regions: RegionFlags | None = None) -> None:
        """Restore the flags that were saved.

        Args:
            regions: the autocast state; None for the one saved last, if no call has ended since.
        """
        torch.set_grad_enabled(self.grad_enabled)
        found = regions or self.regions
        if found is None:
            return
        entered.overrides, entered.in_compiled_step = found.overrides, found.in_compiled_step
        torch.set_autocast_enabled(self._device_type, found.enabled)
        torch.set_autocast_dtype(self._device_type, found.dtype)
        torch.set_autocast_cache_enabled(found.cache_enabled)
        restore_nesting(found.nesting)
        torch.clear_autocast_cache()
        del entered.stack[found.depth :]
