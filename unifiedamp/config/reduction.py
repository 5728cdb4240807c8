"""The dtype in which gradients are summed between ranks, as an argument."""

from __future__ import annotations

from ..errors import ConfigError
from ..loss_scale import LossScale
from ..plain_values import plain
from ..policy.dtypes import canonical_dtype


def checked_reduce_dtype(value: object, loss_scale: LossScale, measured: bool) -> str | None:
    """Return the dtype's full name; None for the framework's own.

    Args:
        value: what the user wrote.
        loss_scale: the one in force.
        measured: a command runs the script under other settings; float16 is left out where these have no loss scale.

    Raises:
        PolicyError: no dtype that gradients are summed in.
        ConfigError: float16 where no overflow would be noticed.
    """
    if value is None:
        return None
    dtype = canonical_dtype(plain(value, "reduce_dtype"), "reduce_dtype")
    if dtype != "float16" or loss_scale.enabled:
        return dtype
    if measured:
        return None
    raise ConfigError(
        "reduce_dtype='float16' overflows above 65504, and without a loss scale no step is checked, so inf would reach "
        "the weights: use reduce_dtype='bfloat16', or a loss scale (loss_scale=1.0 checks without scaling)"
    )
