"""Reads a migrated torch script before it is offered: what would train wrongly, or not run, is refused by line."""

from __future__ import annotations

from ..source import Source
from .bound import unbound
from .facts import Facts
from .rules import RULES


def check(result: Source, path: str) -> list[tuple[int, str]]:  # noqa: ARG001
    """Return (line, reason) for each thing that is wrong with a migrated file.

    Args:
        result: the migrated file.
        path: what messages call it.
    """
    facts = Facts(result)
    if not facts.sessions:
        return []
    found = [one for rule in (*RULES, unbound) for one in rule(facts)]
    return sorted({(result.line(node), f"{what}; write {write}") for node, what, write in found})


__all__ = ["check"]
