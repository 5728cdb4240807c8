"""The autocast regions of a session, each created once."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping

import torch

from unifiedamp.backend import Policy, SessionSpec, Switches, errors

from . import casts, operations
from .autocast import Region
from .emulation import op_choices, uses_autocast
from .thread_state import entered


@functools.cache
def cache_loses_gradients() -> bool:
    """Return whether autocast's cache returns casts of parameters that were made under ``torch.no_grad``.

    It does before pytorch/pytorch#165068: layers that ran without gradients in a region do not train in it.
    """
    weight, x = torch.nn.Parameter(torch.ones(1, 1, device="cpu")), torch.ones(1, 1, device="cpu")
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            torch.nn.functional.linear(x, weight)
        return not torch.nn.functional.linear(x, weight).requires_grad


class Regions:
    """Creates regions, and registers the operations that their policies override.

    Args:
        spec: the session's.
        device: the session's.
        switches: held inside each region.
        cache_enabled: the option of that name.
        check_policy: refuses a region's policy that cannot run in this session.
        explain: see ``Region``.

    Attributes:
        cache: keep casts of parameters within a region; off where torch's cache loses gradients, unless asked for.
    """

    def __init__(
        self,
        spec: SessionSpec,
        device: torch.device,
        switches: Switches,
        cache_enabled: bool | None,
        check_policy: Callable[[Policy], None],
        explain: Callable[[object], None],
    ) -> None:
        self._spec, self._device, self._switches = spec, device, switches
        self._check_policy, self._explain = check_policy, explain
        self.cache = self._keeps_casts(cache_enabled)
        self._made: dict[tuple[bool, Policy | None], Region] = {}
        self._release: list[Callable[[], object]] = []
        for policy in spec.policies:
            self._hold_ops(policy)

    def _keeps_casts(self, wanted: bool | None) -> bool:
        loses = cache_loses_gradients()
        if wanted and loses and self._spec.policy.is_mixed:
            self._spec.warn(
                f"backend_options.torch.cache_enabled: autocast's cache in torch {torch.__version__} keeps casts that "
                "were made without gradients, so layers that ran under torch.no_grad() in a region do not train in it "
                "afterwards; leave the option out to do without the cache",
                errors.PolicyWarning,
            )
        return not loses if wanted is None else wanted

    def get(self, enabled: bool, policy: Policy | None) -> Region:
        """Return the region for the arguments of ``amp.autocast``.

        Raises:
            UnsupportedError, PolicyNotSupportedError: the policy is not for a region of this session.
        """
        own = self._spec.policy
        if policy is not None and entered.in_compiled_step and self._choices(policy) != self._choices(own):
            raise errors.UnsupportedError(
                "amp.autocast(policy=...) inside a compiled step: op_overrides and emulate must be the session's, "
                "because torch.compile traces under them; use layer_overrides, or make a session of that policy"
            )
        return self._made.get((enabled, policy)) or self._add(enabled, policy)

    def uncached(self) -> Region:
        """Return a new region under the session's policy, which keeps no casts of parameters."""
        return self._make(True, self._spec.policy, cache=False)

    def follow_policy(self) -> None:
        """Follow the session's policy: regions of it that were returned before as well."""
        self._made = {key: region for key, region in self._made.items() if key[1] is None}
        for (enabled, _), region in self._made.items():
            region.become(*self._settings(enabled, self._spec.policy), self.cache, self._choices(self._spec.policy))

    def close(self) -> None:
        """Release the operations."""
        while self._release:
            self._release.pop()()

    def _add(self, enabled: bool, policy: Policy | None) -> Region:
        if policy is not None and policy != self._spec.policy:
            self._check_policy(policy)
            self._hold_ops(policy)
        region = self._made[enabled, policy] = self._make(enabled, policy or self._spec.policy, self.cache)
        return region

    def _make(self, enabled: bool, policy: Policy, cache: bool) -> Region:
        return Region(*self._settings(enabled, policy), cache, self._choices(policy), self._switches, self._explain)

    def _settings(self, enabled: bool, policy: Policy) -> tuple[str, torch.dtype | None]:
        """Return a region's device type and dtype."""
        params = self._spec.policy.param_dtype
        if enabled and policy.compute_dtype == "float32" != params:
            raise errors.PolicyNotSupportedError(
                f"amp.autocast(policy={str(policy)!r}): the parameters of this session are {params}, and torch has no "
                f"autocast to float32; use policy 'mixed_{params}' for the session"
            )
        low = enabled and uses_autocast(policy, params)
        return self._device.type, casts.DTYPES[policy.region_dtype] if low else None

    def _choices(self, policy: Policy) -> Mapping[str, str]:
        return op_choices(policy, self._spec.policy.param_dtype)

    def _hold_ops(self, policy: Policy) -> None:
        choices = self._choices(policy)
        if choices:
            self._release.append(weakref.finalize(self, operations.hold(choices, self._device.type)))
