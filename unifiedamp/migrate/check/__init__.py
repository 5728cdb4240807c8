"""Reads a migrated torch script before it is offered: what would train wrongly, or not run, is refused by line."""

from __future__ import annotations

from ..source import Source
from .bound import left_out, unbound, unknown, unmade
from .facts import Facts
from .limits import RULES as LIMITS
from .rejected import unfinished_windows, with_rejections
from .rules import RULES, Problem

_RULES = (*RULES, *LIMITS, unfinished_windows, unbound, unknown, unmade, left_out)


def check(result: Source, path: str) -> list[tuple[int, str]]:  # noqa: ARG001
    """Return (line, reason) for each thing that is wrong with a migrated file.

    Args:
        result: the migrated file.
        path: what messages call it.
    """
    return sorted({(result.line(node), f"{what}; write {write}") for node, what, write in problems(result)})


def problems(result: Source) -> list[Problem]:
    """Return the node, what is wrong and what to write for each thing that is wrong with migrated files."""
    facts = Facts(result)
    return [one for rule in _RULES for one in rule(facts)] if facts.sessions else []


__all__ = ["check", "problems", "with_rejections"]
