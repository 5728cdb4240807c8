"""The role that changes the policy of a running session: what follows it is made anew, in one place."""

from __future__ import annotations

from collections.abc import Callable

from unifiedamp.backend import Policy, PolicySwitcher, SessionSpec

from ..distributed.agreement import Agreement
from .float8_state import Float8State
from .regions import Regions


class TorchPolicySwitcher(PolicySwitcher):
    """Regions, float8 state and the layers' forwards follow the policy. Captured steps compare it before each replay.

    Args:
        spec: the session's, which the other roles read the policy from.
        regions: the session's.
        float8: what float8 layers keep.
        agreement: compares the ranks' iterations.
        attach_layers: detaches what the last policy attached to models, and attaches what the present one does.
    """

    means = "autocast regions and layers made anew; dynamo guards on them, captures compare the policy"

    def __init__(
        self,
        spec: SessionSpec,
        regions: Regions,
        float8: Float8State,
        agreement: Agreement,
        attach_layers: Callable[[], None],
    ) -> None:
        self._spec, self._regions, self._float8, self._attach_layers = spec, regions, float8, attach_layers
        self._agreement = agreement

    def switch(self, policy: Policy) -> None:
        self._spec.policy = policy
        self._regions.follow_policy()
        self._float8.follow(policy)
        self._attach_layers()

    def resume(self, iteration: int) -> None:
        self._agreement.iteration = iteration
