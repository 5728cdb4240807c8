"""``MXNetPrecision``: the scope, autocast and inference regions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from unifiedamp.backend import Policy, Precision

from .._types import Block, Context
from .scope import Scope
from .tables import CastTables


class MXNetPrecision(Precision):
    """Casts operators by MXNet's own lists, in regions.

    Args:
        context: the session's.
        tables: the session's.
        before_region: called before each autocast region.
    """

    def __init__(self, context: Context, tables: CastTables, before_region: Callable[[], None]) -> None:
        self.tables = tables
        self._context, self._before_region = context, before_region

    def scope(self) -> AbstractContextManager[None]:
        return Scope(self._context)

    def autocast(self, enabled: bool, policy: Policy | None) -> AbstractContextManager[object]:
        self._before_region()
        if enabled and policy is None:
            return self.tables.training
        return self.tables.region(enabled, policy)

    def inference(self, models: Sequence[Block]) -> AbstractContextManager[object]:
        return self.tables.inference
