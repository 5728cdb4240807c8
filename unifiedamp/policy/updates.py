"""How 16-bit parameters without float32 master weights are updated, and in which dtype optimizers keep their moments:
``update``, ``state_dtype`` and ``update_seed``.

An update of a bfloat16 weight that is smaller than half its last place (2**-9 of the weight) is lost when it is rounded
to nearest. Two ways keep it (Zamirai et al., "Revisiting BFloat16 Training", 2020, arXiv:2010.06192):

- ``stochastic``: the new weight is rounded up or down with a probability in proportion to the distance, so that it is
  right on average.
- ``kahan``: what rounding to nearest leaves is kept in a bfloat16 buffer and added to the next update (Kahan, "Further
  remarks on reducing truncation errors", 1965).

Moments kept in fewer bits are rounded stochastically: with ``beta2=0.999`` a second moment changes by a thousandth per
step, which rounding to nearest in 8 significant bits loses.
"""

from __future__ import annotations

from typing import Protocol

from ..errors import PolicyError, nearest
from .dtypes import COMPUTE_DTYPES, canonical_dtype

UPDATES = ("stochastic", "kahan")
"""What ``Policy.update`` can be, besides None."""

STATE_DTYPES = ("bfloat16", "float8")
"""What ``Policy.state_dtype`` can be, besides None."""

STATE_WORDS = {word: name for word, name in COMPUTE_DTYPES.items() if name in (*STATE_DTYPES, "float32")}
"""Spellings of these; float32 stands for None."""

LARGEST_SEED = 2**31 - 1


class UpdateFields(Protocol):
    """The fields of a ``Policy`` that say how parameters are updated."""

    @property
    def param_dtype(self) -> str:
        """The dtype of the parameters."""

    @property
    def update(self) -> str | None:
        """One of :data:`UPDATES`, or None."""

    @property
    def state_dtype(self) -> str | None:
        """One of :data:`STATE_DTYPES`, or None."""

    @property
    def update_seed(self) -> int:
        """The seed of stochastic rounding."""


def read_state_dtype(value: object) -> str | None:
    """Return the dtype of moments; None for float32, which is the default.

    Raises:
        PolicyError: it is none of :data:`STATE_DTYPES`.
    """
    if value is None:
        return None
    name = canonical_dtype(value, "state_dtype", STATE_WORDS)
    return None if name == "float32" else name


def check_update(policy: UpdateFields) -> None:
    """Refuse settings of the update that contradict each other.

    Raises:
        PolicyError: an unknown choice, parameters that are not bfloat16, or a setting that has no effect.
    """
    value = policy.update
    if value is not None and value not in UPDATES:
        choices = " or ".join(map(repr, UPDATES))
        raise PolicyError(f"update must be {choices}, or left out, got {value!r}{nearest(str(value), UPDATES)}")
    seed = policy.update_seed
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= LARGEST_SEED:
        raise PolicyError(f"update_seed must be a whole number from 0 to {LARGEST_SEED}, got {seed!r}")
    if policy.update is not None and policy.param_dtype != "bfloat16":
        raise PolicyError(
            f"update={policy.update!r} rounds updates of bfloat16 parameters, but param_dtype is "
            f"{policy.param_dtype}: use policy 'bfloat16;update={policy.update}', or leave update out"
        )
    if policy.state_dtype is not None and policy.update is None and policy.param_dtype != "float32":
        nearest_one = f"'bfloat16;update=kahan;state_dtype={policy.state_dtype}'"
        raise PolicyError(
            f"state_dtype={policy.state_dtype!r} keeps the moments of float32 updates, but {policy.param_dtype} "
            f"parameters are updated in {policy.param_dtype}: use policy {nearest_one}, or leave state_dtype out"
        )
    if seed and policy.update != "stochastic" and policy.state_dtype is None:
        raise PolicyError("update_seed has no effect without update='stochastic' or state_dtype: leave it out")
