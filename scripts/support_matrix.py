"""Write ``docs/support.md`` from conformance reports.

Usage: ``python scripts/support_matrix.py REPORT.json [REPORT.json ...]``. A report comes from
``unifiedamp conformance all --json REPORT.json``; one per environment, kept in ``docs/conformance/``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from unifiedamp.backend import FEATURES, PRESETS

TARGET = Path(__file__).parents[1] / "docs" / "support.md"
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
        cells = ["yes" if backend[key].get(name, {}).get("ok") else "no" for _, backend in columns]
        lines.append(f"| `{name}`{': ' + what if what else ''} | " + " | ".join(cells) + " |")
    return lines


def reasons(columns: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """Return the reasons that backends give, "no" answers and remarks alike."""
    lines = ["\n## Reasons\n"]
    for head, backend in columns:
        for key in ("features", "policies"):
            for name, answer in backend[key].items():
                if answer["reason"]:
                    lines.append(f"- **{head}**, `{name}`: {'' if answer['ok'] else 'no: '}{answer['reason']}")
    return lines


def main(paths: list[str]) -> None:
    """Read the reports, write the page."""
    reports = [json.loads(Path(path).read_text(encoding="utf-8")) for path in paths]
    columns = [(column(report, name), report["backends"][name]) for report in reports for name in report["backends"]]
    lines = [
        HEAD,
        "## Tests\n",
        "| backend | device | forms | passed | failed | strict expected failures | undeclared | date, machine |",
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    for report in reports:
        for name, backend in report["backends"].items():
            counts, machine = backend["counts"], f"{report['date']}, {report['hardware']['cpu']}"
            numbers = " | ".join(str(counts[kind]) for kind in ("passed", "failed", "expected failures", "undeclared"))
            forms = ", ".join(backend["forms"])
            lines.append(f"| {column(report, name)} | {backend['device']} | {forms} | {numbers} | {machine} |")
    lines += table("Capabilities", FEATURES, columns, "features")
    lines += table("Policies on this device", dict.fromkeys(PRESETS, ""), columns, "policies")
    lines += reasons(columns)
    TARGET.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
