"""By how much each applied step moves an exponential moving average."""

from __future__ import annotations

WARMUP_OFFSET = 10.0
"""The constant of the warm-up."""


def ema_weight(decay: float, warmup: bool, n: int) -> float:
    """Return ``1 - d``, by which the ``n``-th applied step moves an average: ``average += (1 - d) * (w - average)``.

    Args:
        decay: d, at least 0 and below 1.
        warmup: d is ``min(decay, (1 + n) / (10 + n))``, as in TensorFlow's ``ExponentialMovingAverage(num_updates)``:
            the average forgets its beginning fast. With ``n`` counting this step it is 2/11 at the first one.
        n: applied steps, this one included.
    """
    if not warmup:
        return 1.0 - decay
    return max(1.0 - decay, (WARMUP_OFFSET - 1.0) / (WARMUP_OFFSET + n))
