"""The autocast regions of a session, each made once for what was asked for."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace

import torch

from unifiedamp.backend import Policy, SessionSpec, Switches, errors

from . import casts, ops, plan
from .autocast import Region, entered


class Regions:
    """Makes regions, and holds the operations that their policies override.

    Args:
        spec: the session's.
        device: the session's.
        switches: held inside each region.

    Attributes:
        cache: keep casts of parameters within a region.
    """

    def __init__(self, spec: SessionSpec, device: torch.device, switches: Switches) -> None:
        self._spec, self._device, self._switches = spec, device, switches
        self.cache = spec.options.get("cache_enabled", True)
        self._made: dict[tuple[bool, Policy | None], Region] = {}
        self._release: list[Callable[[], object]] = []
        self._hold_ops(spec.policy)

    def get(self, enabled: bool, policy: Policy | None) -> Region:
        """Return the region for the arguments of ``amp.autocast``.

        Raises:
            UnsupportedError, PolicyNotSupportedError: the policy is not for a region of this session.
        """
        if policy is not None and entered.in_compiled_step and policy.op_overrides != self._spec.policy.op_overrides:
            raise errors.UnsupportedError(
                "amp.autocast(policy=...) inside a compiled step: op_overrides must be the session's, because "
                "torch.compile traces under them; use layer_overrides, or make a session of that policy"
            )
        return self._made.get((enabled, policy)) or self._add(enabled, policy)

    def uncached(self) -> Region:
        """Return a new region under the session's policy, which keeps no casts of parameters."""
        return self._make(True, self._spec.policy, cache=False)

    def close(self) -> None:
        """Let go of the operations."""
        while self._release:
            self._release.pop()()

    def _add(self, enabled: bool, policy: Policy | None) -> Region:
        if policy is not None and policy != self._spec.policy:
            plan.check_region(self._spec.policy, policy)
            plan.check_policy(replace(self._spec, policy=policy), self._device)
            self._hold_ops(policy)
        region = self._made[enabled, policy] = self._make(enabled, policy or self._spec.policy, self.cache)
        return region

    def _make(self, enabled: bool, policy: Policy, cache: bool) -> Region:
        params = self._spec.policy.param_dtype
        if enabled and policy.compute_dtype == "float32" != params:
            raise errors.PolicyNotSupportedError(
                f"amp.autocast(policy={str(policy)!r}): the parameters of this session are {params}, and torch has no "
                f"autocast to float32; use policy 'mixed_{params}' for the session"
            )
        low = enabled and policy.compute_dtype != params
        dtype = casts.DTYPES[policy.region_dtype] if low else None
        return Region(self._device.type, dtype, cache, policy.op_overrides, self._switches)

    def _hold_ops(self, policy: Policy) -> None:
        if policy.op_overrides:
            self._release.append(weakref.finalize(self, ops.hold(policy.op_overrides, self._device.type)))
