"""What holds for the thread where a call of the session begins, restored where the call was interrupted."""

from __future__ import annotations

import torch

from ..precision.thread_state import ThreadState


class ThreadFlags:
    """The flags that the session's last call found.

    Args:
        device_type: the session's, whose autocast state is saved.

    Attributes:
        grad_enabled: whether gradients were recorded; calls set it where they begin.
        regions: the thread's state, for calls that enter regions; None for others.
    """

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self.grad_enabled = True
        self.regions: ThreadState | None = None

    def save(self) -> None:
        """Save whether gradients are recorded; the hooks of a backward pass, where none are, leave what it found."""
        if torch._C._current_graph_task_id() == -1:
            self.grad_enabled = torch.is_grad_enabled()

    def save_with_regions(self) -> ThreadState:
        """Save the present state, for a call that enters regions; return it."""
        self.regions = found = ThreadState.read(self._device_type)
        self.grad_enabled = found.grad_enabled
        return found

    def restore(self) -> None:
        """Restore what was saved."""
        if self.regions is not None:
            self.regions.restore()
            self.regions = None  # of that call alone: another call may run in other regions
        torch.set_grad_enabled(self.grad_enabled)
