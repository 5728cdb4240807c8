"""A comparison as one HTML file that needs nothing else: no script, no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...output.charts.drawing import Drawing
from ...output.pages import drawn_or_why, render
from . import plots
from .rows import Row
from .write import COLUMNS, NAMES, NUMBERS, cells, notes, tone

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
    return render(
        "comparison",
        about=about,
        final=final,
        advice=advice,
        columns=[{"name": name, "kind": _kind(name)} for name in COLUMNS],
        rows=[{"state": "muted" if row.state in MUTED else "", "cells": _cells(row)} for row in rows],
        heads=sum(name in NAMES for name in COLUMNS),
        notes=notes(rows),
        drawings=drawn,
        not_drawn=why,
    )


def drawings(rows: Sequence[Row]) -> tuple[list[Drawing], str]:
    """Return the plots, or none and the reason why they cannot be drawn."""
    return drawn_or_why(lambda: plots.drawings(rows))


def _kind(column: str) -> str:
    return "number" if column in NUMBERS else "text long" if column == "policy" else "text"


def _cells(row: Row) -> list[dict[str, str]]:
    return [{"text": text, "tone": tone(row, name)} for name, text in zip(COLUMNS, cells(row), strict=True)]
