"""Write ``docs/support.md`` from conformance reports.

Usage: ``python scripts/support_matrix.py [--check]``. It reads the reports in ``docs/conformance/``, one for each
environment, each from ``unifiedamp conformance all --json docs/conformance/NAME.json``; ``--check`` writes nothing and
fails when the page is not what they give.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from unifiedamp.backend import FEATURES, PRESETS

DOCS = Path(__file__).parents[1] / "docs"
REPORTS, TARGET = DOCS / "conformance", DOCS / "support.md"
HEAD = """# What each backend supports

Written by `scripts/support_matrix.py` from the conformance reports in `docs/conformance/`; do not edit by hand.
Every "yes" is a declared capability whose tests pass; every "no" stands with the backend's own reason below.
"""


def column(report: dict[str, Any], name: str) -> str:
    """Return the heading of one backend in one environment."""
    backend = report["backends"][name]
    return f"{name} {backend['framework_version']}"


def table(title: str, rows: dict[str, str], columns: list[tuple[str, dict[str, Any]]], key: str) -> list[str]:
    """Return a Markdown table: one row per feature or policy, one column per backend and environment."""
    lines = [f"\n## {title}\n", "| | " + " | ".join(head for head, _ in columns) + " |"]
    lines.append("|---|" + "---|" * len(columns))
    for name, what in rows.items():
        cells = [answer(backend[key].get(name)) for _, backend in columns]
        lines.append(f"| `{name}`{': ' + what if what else ''} | " + " | ".join(cells) + " |")
    return lines


def answer(given: dict[str, Any] | None) -> str:
    """Return one answer as a word: "–" where the report is older than the question."""
    if given is None:
        return "–"
    if not given["ok"]:
        return "no"
    return "without gain" if given.get("helps") is False else "yes"


def reasons(columns: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """Return the reasons that backends give, "no" answers and remarks alike."""
    lines = ["\n## Reasons\n"]
    for head, backend in columns:
        for key in ("features", "policies"):
            for name, given in backend[key].items():
                if given["reason"]:
                    word = {"yes": "", "no": "no: ", "without gain": "without gain: "}[answer(given)]
                    lines.append(f"- **{head}**, `{name}`: {word}{given['reason']}")
    return lines


def page(reports: list[dict[str, Any]]) -> str:
    """Return the page; the toy backend of the project's own tests is not on it."""
    for report in reports:
        report["backends"].pop("toy", None)
    columns = [(column(report, name), backend) for report in reports for name, backend in report["backends"].items()]
    kinds = ("passed", "failed", "expected failures", "undeclared")
    lines = [
        HEAD,
        "## Tests\n",
        f"| backend | device | forms | {' | '.join(kinds)} | date, machine |",
        "|---" * 8 + "|",
    ]
    for report in reports:
        machine = f"{report['date']}, {report['hardware']['cpu']}"
        for name, backend in report["backends"].items():
            numbers = " | ".join(str(backend["counts"][kind]) for kind in kinds)
            forms = ", ".join(backend["forms"])
            lines.append(f"| {column(report, name)} | {backend['device']} | {forms} | {numbers} | {machine} |")
    lines += table("Capabilities", FEATURES, columns, "features")
    lines += table("Policies on this device", dict.fromkeys(PRESETS, ""), columns, "policies")
    return "\n".join([*lines, *reasons(columns)]) + "\n"


def main() -> None:
    """Read the reports; write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    text = page([json.loads(path.read_text(encoding="utf-8")) for path in sorted(REPORTS.glob("*.json"))])
    if check and TARGET.read_text(encoding="utf-8") != text:
        raise SystemExit(f"{TARGET} is not what the reports give: run python scripts/support_matrix.py")
    TARGET.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
