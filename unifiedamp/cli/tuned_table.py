"""The table that ``tune`` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..workloads.compare.rows import BASELINE
from ..workloads.tune.prober import Finding
from .show import console, say, table


def show_findings(findings: list[Finding], chosen: Finding, why: str, target: Path, unit: str = "samples") -> None:
    """Print what was tried, what is chosen and why."""
    out = console()
    columns = ("policy", "loss", "initial scale", "float32 layers", f"{unit}/s", "x float32", "verdict")
    rows: list[tuple[Any, ...]] = []
    for one in findings:
        verdict = "chosen" if one is chosen else one.reason or "trains as well"
        rows.append((one.policy, _or_dash(one.loss, ".4f"), _or_dash(one.initial_scale, "g"),
                     ", ".join(one.float32_layers) or "-", _or_dash(one.samples_per_second, ".0f"), _speed(one),
                     verdict))  # fmt: skip
    right = ("loss", "initial scale", f"{unit}/s", "x float32")
    out.print(table("What was tried", columns, rows, right=right, verdicts=("verdict",)))
    say(out, f"{chosen.policy}: {why}", "bold")
    say(out, f"written to {target}")


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _speed(one: Finding) -> str:
    if one.ratio is None:
        return "-"
    same = one.policy == BASELINE
    return "1" if same else f"{one.ratio:.2f} ({one.ratio_low:.2f}-{one.ratio_high:.2f})"
