"""The session's cast tables, one per policy, and the regions over them."""

from __future__ import annotations

from unifiedamp.backend import Policy, SessionSpec, errors

from .._types import Context
from ..options import emulated
from .autocast import Region
from .casts import CastTable
from .layers import BoundaryCasts
from .policies import check_policy, holds_rounded, multicasts


class CastTables:
    """Makes a table for each policy, and a region for each table; both are kept until :meth:`reset`.

    Args:
        spec: for the policy, and whether losses are scaled.
        context: the session's.
        boundaries: the casts at blocks.
        optimize_layout: graphs are built with MXNet 2's layout pass.

    Attributes:
        session: the table of the session's policy.
        training, inference: the regions of the session's policy.
    """

    def __init__(self, spec: SessionSpec, context: Context, boundaries: BoundaryCasts, optimize_layout: bool) -> None:
        self._spec, self._scaled = spec, spec.loss_scale.enabled
        self._context, self._boundaries = context, boundaries
        self._optimize_layout = optimize_layout
        self.reset()

    def reset(self) -> None:
        """Make new tables: graphs traced under the old ones lack what a new model brings."""
        self._tables: dict[Policy, CastTable] = {}
        self._regions: dict[tuple[bool, Policy | None], Region] = {}
        for policy in self._spec.policies:  # so that no switch fails in the middle of a run
            self._table(emulated(self._spec, policy))
        self.session = self._table(self._spec.policy)
        self.training = Region(self.session)
        self.inference = Region(self.session, infer=True)

    def follow_policy(self) -> None:
        """Follow the session's policy: regions of it that were returned before as well."""
        self.session = self._table(self._spec.policy)
        self._regions.pop((True, None), None)
        self.training.become(self.session)
        self.inference.become(self.session)

    def region(self, enabled: bool, policy: Policy | None) -> Region:
        """Return the region of a policy (None: the session's), or the one that casts nothing.

        Raises:
            PolicyNotSupportedError, UnsupportedError: the policy cannot run in a region of this session.
        """
        region = self._regions.get((enabled, policy))
        if region is None:
            if enabled and policy is not None:
                self._check_params(policy)
                self._check_recipe(policy)
            # Layers compute in the dtype of their parameters where a region is disabled, and emulated ones so too.
            own = self._spec.policy
            region = Region(self._table(policy or own) if enabled or holds_rounded(own) else None)
            self._regions[(enabled, policy)] = region
        return region

    def _check_params(self, policy: Policy) -> None:
        """Refuse float32 over parameters of 16 bits: operators run in their inputs' dtype there."""
        params = self._spec.policy.param_dtype
        if policy.compute_dtype == "float32" != params:
            raise errors.PolicyNotSupportedError(
                f"amp.autocast(policy={str(policy)!r}): the parameters of this session are {params}, and no operator "
                f"is cast to float32; use policy 'mixed_{params}' for the session"
            )

    def _check_recipe(self, policy: Policy) -> None:
        """Refuse delayed scaling in a region: its histories are made for the session's policy."""
        own = self._spec.policy
        delayed = [each.compute_dtype == "float8" and each.recipe == "delayed" for each in (policy, own)]
        if any(delayed) and policy.compute_dtype == "float8" and policy.float8 != own.float8:
            raise errors.UnsupportedError(
                f"amp.autocast(policy={str(policy)!r}): dense layers are made ready for the session's recipe by "
                "amp.prepare, and delayed scaling is one"
            )

    def _table(self, policy: Policy) -> CastTable:
        table = self._tables.get(policy)
        if table is None:
            check_policy(policy, self._context)
            table = CastTable(policy, scaled=self._scaled, multicast=multicasts(policy, self._context))
            table.optimize_layout, table.warn = self._optimize_layout, self._spec.warn
            self._boundaries.apply(table)
            self._tables[policy] = table
        return table
