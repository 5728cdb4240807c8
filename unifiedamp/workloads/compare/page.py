"""A comparison as one HTML file that needs nothing else: no script, no network."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import UnsupportedError
from ...output.pages import html_text
from .plots import pictures
from .rows import Row
from .write import COLUMNS, NUMBERS, cells, notes

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.45 system-ui, sans-serif; color: #1a1a1a; margin: 2rem auto; max-width: 92rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }
th { border-bottom: 2px solid #888; } td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; } td.text { overflow-wrap: anywhere; min-width: 4.5rem; }
td:nth-child(2) { min-width: 9rem; }
tr.failed td, tr.refused td { color: #777; }
.advice { background: #eef4fb; border-left: 4px solid #1f77b4; padding: .5rem 1rem; }
img { max-width: 100%; height: auto; display: block; }
.small { color: #555; font-size: .85rem; }
"""


def html(rows: Sequence[Row], about: Mapping[str, Any], advice: Sequence[str], *, final: bool = True) -> str:
    """Return the page.

    Args:
        rows: finished or not.
        about: title, machine, versions, date, command.
        advice: its sentences.
        final: False while runs are still to come; said on the page.
    """
    body = [
        f"<h1>{html_text(about['title'])}</h1>",
        "" if final else '<p class="small">Not finished: rows are still to come.</p>',
        _advice(advice),
        '<div class="scroll">' + _table(rows) + "</div>",
        "<ul class='small'>" + "".join(f"<li>{html_text(line)}</li>" for line in notes(rows)) + "</ul>",
        _pictures(rows),
        f"<p class='small'>{html_text(about['machine'])}; {html_text(about['versions'])}. {html_text(about['date'])}, "
        f"<code>{html_text(about['command'])}</code></p>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # An empty icon, or browsers ask the server for one and report that there is none.
        f'<link rel="icon" href="data:,"><title>{html_text(about["title"])}</title>'
        f"<style>{STYLE}</style></head>\n<body>" + "\n".join(filter(None, body)) + "</body></html>\n"
    )


def _advice(advice: Sequence[str]) -> str:
    return '<div class="advice">' + "".join(f"<p>{html_text(line)}</p>" for line in advice) + "</div>" if advice else ""


def _table(rows: Sequence[Row]) -> str:
    classes = ["number" if name in NUMBERS else "text" for name in COLUMNS]
    head = "".join(f'<th class="{c}">{html_text(name)}</th>' for name, c in zip(COLUMNS, classes, strict=True))
    body = ""
    for row in rows:
        each = "".join(f'<td class="{c}">{html_text(cell)}</td>' for cell, c in zip(cells(row), classes, strict=True))
        body += f'<tr class="{html_text(row.state)}">{each}</tr>'
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _pictures(rows: Sequence[Row]) -> str:
    try:
        return "".join(_picture(title, svg) for title, svg in pictures(rows).items())
    except UnsupportedError as error:
        return f"<p>No pictures: {html_text(str(error))}.</p>"


def _picture(title: str, svg: str) -> str:
    # As a separate image, so that the ids of two drawings do not collide.
    data = b64encode(svg.encode()).decode()
    return f'<h2>{html_text(title)}</h2><img alt="{html_text(title)}" src="data:image/svg+xml;base64,{data}">'
