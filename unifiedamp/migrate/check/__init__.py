"""Reads a migrated torch script before it is offered: what would train wrongly, or not run, is refused by line."""

from __future__ import annotations

from ..source import Source
from .bound import late, left_out, unbound, unknown, unmade
from .facts import Facts
from .limits import RULES as LIMITS
from .recast import recast
from .rejected import unfinished_windows, with_rejections
from .rules import RULES, Problem
from .sent import sent

_RULES = (*RULES, *LIMITS, unfinished_windows, unbound, unknown, unmade, late, left_out, recast, sent)


def check(result: Source, path: str) -> list[tuple[int, str]]:  # noqa: ARG001
    """Return (line, reason) for each thing that is wrong with a migrated file.

    Args:
        result: the migrated file.
        path: what messages call it.
    """
    return _by_line(result, problems(result))


def check_limits(result: Source, path: str) -> list[tuple[int, str]]:  # noqa: ARG001
    """Return what no session can take over from a file of which half is migrated; arguments as of :func:`check`."""
    facts = Facts(result)
    return _by_line(result, [one for rule in LIMITS for one in rule(facts)])


def problems(result: Source) -> list[Problem]:
    """Return the node, what is wrong and what to write for each thing that is wrong with migrated files."""
    facts = Facts(result)
    return [one for rule in _RULES for one in rule(facts)] if facts.sessions else []


def _by_line(result: Source, found: list[Problem]) -> list[tuple[int, str]]:
    said = {(result.line(node), f"{what}; write {write}") for node, what, write in found}
    return sorted((line, " ".join(reason.split())) for line, reason in said)


__all__ = ["check", "check_limits", "problems", "with_rejections"]
