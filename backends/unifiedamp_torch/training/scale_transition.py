"""Updating the loss scale on the device, equal to ``LossScale.next_state``."""

from __future__ import annotations

import torch

from unifiedamp.backend import LossScale

FLOAT32_MAX = torch.finfo(torch.float32).max


def update_scale(
    settings: LossScale,
    scale: torch.Tensor,
    tracker: torch.Tensor,
    bad: torch.Tensor,
    found: torch.Tensor,
    spent: torch.Tensor | None = None,
) -> None:
    """Update the state in place by one iteration, with torch's own kernel where it is enough.

    Args:
        settings: the loss scale in force.
        scale: float32 scalar.
        tracker: int32 scalar, torch's name for ``good_steps``.
        bad: ``bad_steps``, a float64 scalar (float32 where the device has no float64).
        found: float32 scalar, 0 or 1.
        spent: ``hysteresis_steps``, like ``bad``; None where the settings do not keep it.
    """
    low, high = settings.scale_bounds
    if settings.hysteresis > 1 or high * settings.growth_factor > FLOAT32_MAX:
        # torch's kernel has no hysteresis, and keeps the scale where growth would overflow.
        update_scale_by_formula(settings, scale, tracker, bad, found, spent)
        return
    torch.addcmul(found, bad, found, out=bad)  # (bad + 1) · found in one kernel
    torch._amp_update_scale_(
        scale, tracker, found, settings.growth_factor, settings.backoff_factor, settings.growth_interval
    )
    scale.clamp_(low, high)


def update_scale_by_formula(
    settings: LossScale,
    scale: torch.Tensor,
    tracker: torch.Tensor,
    bad: torch.Tensor,
    found: torch.Tensor,
    spent: torch.Tensor | None = None,
) -> None:
    """Do what :func:`update_scale` does in pointwise operations, for any settings; it can be compiled."""
    low, high = settings.scale_bounds
    failed = found > 0
    run = torch.where(failed, bad + 1, 0)
    good = torch.where(failed, 0, tracker + 1)
    grows = good >= settings.growth_interval
    wide = scale.to(bad.dtype)
    grown = (wide * settings.growth_factor).float().clamp(max=high)
    shrunk = (wide * settings.backoff_factor).float().clamp(min=low)
    counted = run
    if spent is not None:
        counted = torch.where(failed, (spent + 1).clamp(max=settings.hysteresis), torch.where(grows, 0, spent))
        spent.copy_(counted)
    scale.copy_(torch.where(grows, grown, torch.where(failed & (counted >= settings.hysteresis), shrunk, scale)))
    tracker.copy_(torch.where(grows, 0, good))
    bad.copy_(run)
