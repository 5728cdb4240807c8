"""Policies that a machine does not run: the suite runs their emulation in place of skipping, and says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import unifiedamp as ua
from unifiedamp.formats import FLOAT_FORMATS
from unifiedamp.formats.rounding import round_to

_ran: list[str] = []


def take_ran() -> list[str]:
    """Return the presets that ran emulated since the last call."""
    taken = list(_ran)
    _ran.clear()
    return taken


def emulation_of(harness: Any, policy: Any) -> ua.Policy | None:
    """Return a mixed policy, or one with bfloat16 parameters, with ``emulate``; None for others, and where the backend
    emulates none.

    Args:
        harness: of the backend under test.
        policy: a policy or its text.
    """
    known = ua.Policy.parse(policy) if isinstance(policy, str) else policy
    if not isinstance(known, ua.Policy) or known.emulate:
        return None
    if known.param_dtype != "bfloat16" and (known.param_dtype != "float32" or not known.is_mixed):
        return None
    return known.replace(emulate=True) if harness.capabilities().feature("emulation") else None


def or_emulated(harness: Any, policy: Any, make: Callable[[Any], ua.Amp]) -> ua.Amp:
    """Return ``make(policy)``; where the backend refuses the policy here but emulates it, that of the emulation.

    Raises:
        PolicyNotSupportedError: neither runs.
    """
    try:
        return make(policy)
    except ua.PolicyNotSupportedError as refusal:
        emulated = emulation_of(harness, policy)
        if emulated is None:
            raise
        try:
            amp = make(emulated)
        except ua.PolicyNotSupportedError:
            raise refusal from None
    _ran.append(emulated.name or str(emulated))
    return amp


def has_dtype(harness: Any, amp: ua.Amp, tensor: Any, dtype: str, policy: ua.Policy | None = None) -> bool:
    """Return whether a tensor has this dtype; under an emulated policy, also whether it holds numbers of it in float32.

    Args:
        harness: of the backend under test.
        amp: the session.
        tensor: what a model returned.
        dtype: the output dtype of the policy.
        policy: the policy in force; None for that of the session.
    """
    found = harness.dtype_of(tensor)
    if found == dtype or not (policy or amp.policy).emulate:
        return bool(found == dtype)
    values = np.asarray(amp.to_numpy(tensor))
    return found == "float32" and bool((round_to(values, FLOAT_FORMATS[dtype]) == values).all())
