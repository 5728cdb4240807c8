"""Tables for notebooks: what ``_repr_html_`` of our objects returns.

Styles are inline and name no text or background color, so that a table takes both from a light or a dark page. Lines
are half-transparent gray, which shows on either. There is no script and no ``<style>``, which notebooks remove.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from .visible import visible

_LINE = "1px solid rgba(128, 128, 128, 0.5)"
_CELL = f"text-align: left; vertical-align: top; padding: 0.2em 0.8em; border-bottom: {_LINE}; white-space: pre-wrap"


def table_html(title: str, rows: Iterable[Sequence[object]], columns: Sequence[str] = ()) -> str:
    """Return an HTML table; text in it is escaped.

    Args:
        title: its caption.
        rows: cells; the first of each row is its heading.
        columns: headings of the columns; none for a list of names and values.
    """
    caption = f'<caption style="text-align: left; font-weight: bold">{_text(title)}</caption>'
    head = f"<thead>{_row([_cell(name, 'th', 'col') for name in columns])}</thead>" if columns else ""
    body = "".join(_row([_cell(row[0], "th", "row"), *[_cell(value, "td") for value in row[1:]]]) for row in rows)
    return f'<table style="border-collapse: collapse">{caption}{head}<tbody>{body}</tbody></table>'


def _row(cells: Sequence[str]) -> str:
    return f"<tr>{''.join(cells)}</tr>"


def _cell(value: object, tag: str, scope: str = "") -> str:
    attribute = f' scope="{scope}"' if scope else ""
    return f'<{tag}{attribute} style="{_CELL}">{_text(value)}</{tag}>'


def _text(value: object) -> str:
    return html.escape(visible(value, keep="\t\n"))
