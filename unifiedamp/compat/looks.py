"""What a session does after each of its steps, for steps that a framework's own loop makes."""

from __future__ import annotations

import unifiedamp as ua


def after_step(amp: ua.Amp) -> None:
    """Count a step; look at the loss scale when it is time, and tell observers.

    Raises:
        LossScaleExhausted: ``max_consecutive_skips`` steps in a row were skipped.
    """
    if amp.loss_scale_settings.enabled:
        amp.scale_monitor.after_step()
