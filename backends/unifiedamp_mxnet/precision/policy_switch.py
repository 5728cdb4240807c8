"""The role that changes the policy of a running session: regions take the cast table of another policy."""

from __future__ import annotations

from unifiedamp.backend import Policy, PolicySwitcher, SessionSpec

from ..options import emulated
from .tables import CastTables


class MXNetPolicySwitcher(PolicySwitcher):
    """Regions follow the policy; hybridized blocks keep a graph for each table, traced at its first call.

    Args:
        spec: the session's, which the other roles read the policy from.
        tables: the session's.
    """

    means = "a table of casts for each policy; hybridized blocks are traced once under each"

    def __init__(self, spec: SessionSpec, tables: CastTables) -> None:
        self._spec, self._tables = spec, tables

    def switch(self, policy: Policy) -> None:
        self._spec.policy = emulated(self._spec, policy)
        self._tables.follow_policy()
