"""Retired mixed-precision interfaces, over the same session: change the import line and the code runs again.

Each module imports its framework; importing this package imports none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..measured import follower

if TYPE_CHECKING:
    from ..session import Amp


def after_step(amp: Amp) -> None:
    """Count a step that a framework's own loop made; poll the loss scale when it is due, and notify observers.

    Raises:
        LossScaleExhausted: ``max_consecutive_skips`` steps in a row were skipped.
    """
    if amp.loss_scale_settings.enabled:
        amp.scale_monitor.after_step()
    note_step()


def note_step() -> None:
    """Note the end of an iteration, where a measured run follows this loop."""
    measured = follower()
    if measured is not None:
        measured.native_step()


def note_loss(loss: Any) -> None:
    """Note an unscaled loss, where a measured run follows this loop."""
    measured = follower()
    if measured is not None:
        measured.native_loss(loss)
