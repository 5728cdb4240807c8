"""``unifiedamp conformance --mutants``: which faults of a backend the suite notices."""

from __future__ import annotations

import itertools
import json as json_format
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..conformance.mutants import KILLED, LEFT_OUT, Outcome, Report, chosen, run_faults
from ..output.files import write_whole
from .errors import NOT_ALL_WELL
from .show import console, print_json, say, table
from .time_left import TimeLeft

SCHEMA, VERSION = "unifiedamp-mutants", 1
EXAMPLES = 3
"""Tests named for each reason why some are not run."""
LONGEST = 90
"""Characters shown of such a reason; the JSON report has all."""


def run(backend: str, forms: Sequence[str], faults: Sequence[str], written: Path | None, json: bool = False) -> int:
    """Run, show and write the report; return the exit code."""
    out = console()
    wanted = chosen(faults)
    report = run_faults(backend, wanted, forms, _progress(len(wanted)))
    if written is not None:
        write_whole(written, _text(report))
    if json:
        print_json(to_dict(report))
        return NOT_ALL_WELL if report.survivors else 0
    columns = ("fault", "what is wrong", "killed by")
    out.print(table(f"{backend}, {', '.join(forms)}", columns, map(_row, report.outcomes), verdicts=("killed by",)))
    for line in _lines(report):
        say(out, line)
    return NOT_ALL_WELL if report.survivors else 0


def _progress(total: int) -> Callable[[Outcome], None]:
    """Return what shows each outcome as it comes, on a terminal; without a thread, since processes are forked."""
    err, numbers, left = console(stderr=True), itertools.count(1), TimeLeft(total)

    def show(outcome: Outcome) -> None:
        if err.is_terminal:
            number = next(numbers)
            say(err, f"{number} of {total}: {outcome.name}: {outcome.state}{left(number)}", "dim")

    return show


def _row(outcome: Outcome) -> tuple[str, str, str]:
    return outcome.name, outcome.about, outcome.why if outcome.state == KILLED else _state(outcome)


def _state(outcome: Outcome) -> str:
    return f"{outcome.state}: {outcome.why}" if outcome.why else outcome.state.upper()


def _lines(report: Report) -> list[str]:
    counts = {state: sum(each.state == state for each in report.outcomes) for state in (KILLED, LEFT_OUT)}
    tried = len(report.outcomes) - counts[LEFT_OUT]
    lines = [
        f"{counts[KILLED]} of {tried} faults killed, {len(report.survivors)} survived, {counts[LEFT_OUT]} not "
        f"applicable; {report.tests} tests count"
    ]
    for name in report.failing:
        lines.append(f"fails on the backend as it is, and counts for no fault: {name}")
    for reason, tests in sorted(report.untested.items()):
        rules = list(dict.fromkeys(test.partition("[")[0] for test in tests))
        more = f" and {len(rules) - EXAMPLES} more" if len(rules) > EXAMPLES else ""
        lines.append(f"not tested here, {_shortened(reason)}: {', '.join(rules[:EXAMPLES])}{more}")
    return lines


def _shortened(reason: str) -> str:
    return reason if len(reason) <= LONGEST else f"{reason[:LONGEST]}..."


def to_dict(report: Report) -> dict[str, Any]:
    """Return the report as plain JSON values."""
    return {"schema": SCHEMA, "version": VERSION, **asdict(report), "survivors": [one.name for one in report.survivors]}


def _text(report: Report) -> str:
    return json_format.dumps(to_dict(report), indent=1, allow_nan=False) + "\n"
