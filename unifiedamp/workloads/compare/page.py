"""A comparison as one HTML file that needs nothing else: no script, no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...output.charts.drawing import Drawing
from ...output.pages import drawn_or_why, render
from . import plots
from .rows import Row
from .write import NAMES, Cells, notes, table_of, tone

MUTED = ("failed", "refused", "waiting")
"""States of a row whose cells say little."""


def html(rows: Sequence[Row], about: Mapping[str, Any], advice: Sequence[str], *, final: bool = True) -> str:
    """Return the page.

    Args:
        rows: finished or not.
        about: title, machine, versions, date, command.
        advice: its sentences.
        final: False while runs are still to come; said on the page.
    """
    drawn, why = drawings(rows)
    shown = table_of(rows)
    return render(
        "comparison",
        about=about,
        final=final,
        advice=advice,
        columns=[{"name": name, "kind": _kind(name, shown)} for name in shown.columns],
        rows=[
            {"state": "muted" if row.state in MUTED else "", "cells": _cells(row, line, shown)}
            for row, line in zip(rows, shown.rows, strict=True)
        ],
        heads=sum(name in NAMES for name in shown.columns),
        notes=notes(rows),
        drawings=drawn,
        not_drawn=why,
    )


def drawings(rows: Sequence[Row]) -> tuple[list[Drawing], str]:
    """Return the plots, or none and the reason why they cannot be drawn."""
    return drawn_or_why(lambda: plots.drawings(rows))


def _kind(column: str, shown: Cells) -> str:
    return "number" if column in shown.numbers else "text long" if column == "policy" else "text"


def _cells(row: Row, line: Sequence[str], shown: Cells) -> list[dict[str, str]]:
    return [{"text": text, "tone": tone(row, name)} for name, text in zip(shown.columns, line, strict=True)]
