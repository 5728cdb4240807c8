"""Settings of a measured run in the place of the script's, and what is said of each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..config.arguments import policy_of_table
from ..config.environment import VARIABLES
from ..policy import Policy
from .request import Overrides

WHOLE, CASTS, SCALER = "whole", "casts", "scaler"
"""What a session is for: a loop of the user's, or one half of a retired interface's (``unifiedamp.compat``)."""
UNSCALED = 1.0
"""The static scale of a retired interface's scaler under a policy that needs none: its calls go on working."""


@dataclass(frozen=True)
class Given:
    """The arguments of ``Amp`` that a measured run may replace."""

    policy: str | Policy | Mapping[str, Any] | None
    loss_scale: Any
    compile: str
    backend_options: Mapping[str, Any] | None
    master_weights: bool


def override(given: Given, wanted: Overrides, backend: str, part: str) -> tuple[Given, list[str]]:
    """Return the arguments in force, and sentences on what the script said otherwise.

    Args:
        given: the script's.
        wanted: the command's.
        backend: the name of the session's backend.
        part: what the session is for.
    """
    said: list[str] = []
    if wanted.policy is not None:
        given = _under(given, wanted, Policy.parse(wanted.policy), part, said)
    if wanted.compile is not None:
        if given.compile not in ("default", wanted.compile):
            said.append(f"the script pins compile={given.compile!r}; measured with {wanted.compile!r}")
        given = replace(given, compile=wanted.compile)
    if wanted.backend_options:
        own = dict(given.backend_options or {})
        options = {**own, backend: {**own.get(backend, {}), **wanted.backend_options}}
        given = replace(given, backend_options=options)
    return given, said


def _under(given: Given, wanted: Overrides, chosen: Policy, part: str, said: list[str]) -> Given:
    own = _parsed(given.policy)
    scale = _scale(given.loss_scale, own, wanted, chosen, part, said)
    if part == SCALER:
        return replace(given, loss_scale=scale)
    if own is not None and str(own) != str(chosen):
        said.append(f"the script pins policy={str(own)!r}; measured under {str(chosen)!r}")
    masters = given.master_weights and chosen.param_dtype != "float32"
    if given.master_weights and not masters:
        said.append(f"the script's master_weights are left out: parameters are float32 under {str(chosen)!r}")
    return replace(
        given, policy=chosen, loss_scale=given.loss_scale if part == CASTS else scale, master_weights=masters
    )


def _parsed(policy: str | Policy | Mapping[str, Any] | None) -> Policy | None:
    if isinstance(policy, Mapping):
        return policy_of_table(policy)
    return Policy.parse(policy) if isinstance(policy, str) else policy


def _scale(asked: Any, own: Policy | None, wanted: Overrides, chosen: Policy, part: str, said: list[str]) -> Any:
    """Return the loss scale under ``chosen``: the script's, for a policy that scales losses by itself."""
    variable = os.environ.get(VARIABLES["loss_scale"])
    asked = next((one for one in (asked, own and own.loss_scale, variable) if one), None)
    if chosen.loss_scale is not None:
        return None if part != SCALER else chosen.loss_scale if chosen.loss_scale.enabled else UNSCALED
    if chosen.resolved_loss_scale.enabled:
        return asked if wanted.loss_scale is None else wanted.loss_scale
    os.environ.pop(VARIABLES["loss_scale"], None)
    if part == SCALER:
        return UNSCALED
    if asked is not None and asked != "none":
        said.append(f"the script's loss scale is left out under {str(chosen)!r}, which needs none")
    return None
