"""A comparison as one HTML file that needs nothing else: no script, no network."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import UnsupportedError
from ...output.pages import render
from .plots import pictures
from .rows import Row
from .write import notes, table_of


def html(rows: Sequence[Row], about: Mapping[str, Any], advice: Sequence[str], *, final: bool = True) -> str:
    """Return the page.

    Args:
        rows: finished or not.
        about: title, machine, versions, date, command.
        advice: its sentences.
        final: False while runs are still to come; said on the page.
    """
    drawn, why = _pictures(rows)
    shown = table_of(rows)
    return render(
        "comparison",
        about=about,
        final=final,
        advice=advice,
        columns=shown.columns,
        kinds=["number" if name in shown.numbers else "text" for name in shown.columns],
        rows=[{"state": row.state, "cells": line} for row, line in zip(rows, shown.rows, strict=True)],
        notes=notes(rows),
        pictures=drawn,
        no_pictures=why,
    )


def _pictures(rows: Sequence[Row]) -> tuple[dict[str, str], str]:
    """Return title → picture, or none and the reason; as separate images, so that their ids do not collide."""
    try:
        return {title: b64encode(svg.encode()).decode() for title, svg in pictures(rows).items()}, ""
    except UnsupportedError as error:
        return {}, str(error)
