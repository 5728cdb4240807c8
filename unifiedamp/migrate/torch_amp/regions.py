"""Autocast regions: which of them see the session, and what they become."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from ..work import Work
from .arguments import enabled_of, policy_of
from .scaler import Scaler
from .words import AUTOCAST


def leave(work: Work, node: cst.CSTNode, what: str) -> None:
    """Leave a region as it is, and say so."""
    write = "it goes on working as it is; where a session can be seen, write `with amp.autocast():`"
    work.note(node, what, write)


def seen_regions(work: Work, scaler: Scaler) -> dict[cst.Call, str]:
    """Return each autocast that sees the session, with its policy; the others are left.

    Raises:
        CannotMigrate: there is none, or one with a dtype that cannot be known.
    """
    seen: dict[cst.Call, str] = {}
    for call in work.source.calls(*AUTOCAST):
        if isinstance(work.source.parents[call], cst.Decorator) or scaler.seen_from(call) is None:
            leave(work, call, "autocast where the session cannot be seen")
            continue
        seen[call] = policy_of(work, call)
    if not seen:
        raise work.stop(
            scaler.made, "no autocast region where the GradScaler can be seen",
            "compute the loss in `with amp.autocast():` beside the loop (a region in forward() may stay)",
        )  # fmt: skip
    return seen


def rewrite_regions(
    work: Work, scaler: Scaler, regions: Mapping[cst.Call, str], policy: str, enabled: str | None
) -> None:
    """Make regions the session's.

    Args:
        work: takes the changes.
        scaler: what the session replaces.
        regions: call → the policy of its region.
        policy: the session's.
        enabled: the code of the switch that the session's policy has, or None.
    """
    source = work.source
    for call, own in regions.items():
        arguments = []
        switch = enabled_of(source, call)
        here = source.scope(scaler.made) is source.scope(call)
        if switch is not None and (switch != enabled or not here):
            arguments.append(f"enabled={switch}")
        if own != policy:
            arguments.append(f'policy="{own}"')
        work.edits.expression(call, f"{scaler.seen_from(call)}.autocast({', '.join(arguments)})")
