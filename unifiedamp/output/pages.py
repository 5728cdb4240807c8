"""Text that others wrote (names of layers and files, policies), made safe for the pages and pictures of commands."""

from __future__ import annotations

from typing import Any

from .terminal import visible

LABEL = 60
"""Characters of a label in a picture; more would leave no room for what is drawn."""


def render(template: str, **values: Any) -> str:
    r"""Return an HTML page.

    Markup in the values is none, and what would hide or turn text around is written as ``\u202e``.

    Args:
        template: a file of the folder ``templates``, without ``.html.j2``.
        **values: what it shows.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("unifiedamp.output"),
        autoescape=True,
        finalize=_shown,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(f"{template}.html.j2").render(values)


def _shown(value: object) -> str:
    return visible(value, keep="\t\n")


def markdown_text(text: object) -> str:
    """Return text for Markdown: no HTML in it, no end of a table's cell, and what would hide text is written out."""
    return visible(text).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")


def picture_label(text: object) -> str:
    """Return text for a picture: what would hide text is written out, a dollar sign is none of a formula.

    Long text keeps its end, by which layers differ.
    """
    shown = "\n".join(_shortened(line) for line in visible(text, keep="\n").split("\n"))
    return shown.replace("$", r"\$")


def _shortened(line: str) -> str:
    return line if len(line) <= LABEL else f"…{line[-LABEL + 1 :]}"
