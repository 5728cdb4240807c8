"""Casts without regions, in the form of ``mxnet.amp.init``.

For ``unifiedamp.compat.mxnet``; a session casts in regions alone.
"""

from __future__ import annotations

from . import dispatch
from .casts import CastTable, ThreadState, current


class ProcessWideCasts:
    """Runs operators under a table on every thread, outside regions too, until :meth:`end`.

    MXNet's own ``amp.init`` does the same by patching about 1,600 functions, which it cannot undo.

    Args:
        table: the rules.
    """

    def __init__(self, table: CastTable) -> None:
        ThreadState.table = current.table = table
        dispatch.install(self)

    def end(self) -> None:
        """Stop casting. A region that is open on another thread now keeps its own rules until it is left."""
        ThreadState.table = current.table = None
        dispatch.uninstall(self)
