"""Text that others wrote (names of layers and files, policies), made safe for the pages and pictures of commands."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from ..visible import visible
from .charts.drawing import WIDTH, Drawing, number

LABEL = 60
"""Characters of a label in a picture; more would leave no room for what is drawn."""


NARROW = {
    "comparison": "screen and (max-width: 78rem), print and (max-width: 45rem)",
    "recording": "screen and (max-width: 44rem), print and (max-width: 30rem)",
    "forecast": "screen and (max-width: 60rem), print and (max-width: 45rem)",
}
"""Template → where its tables are shown as one record per row."""
DENSE = "@media screen { th, td { padding: .35rem clamp(.2rem, .35vw, .5rem); } }\n"
OWN = {"comparison": f"@page {{ size: landscape; margin: 12mm; }}\n{DENSE}", "recording": "@page { margin: 14mm; }\n",
       "forecast": "@page { size: landscape; margin: 12mm; }\n"}  # fmt: skip
"""Template → what only its style sheet says: a comparison has many columns."""


def render(template: str, **values: Any) -> str:
    r"""Return an HTML page that needs nothing else and runs nothing.

    Its content-security policy allows the page's own style sheet, by its hash, and an empty icon. Markup in the values
    is none, and what would hide or turn text around is written as ``\u202e``.

    Args:
        template: a file of the folder ``templates``, without ``.html.j2``.
        **values: what it shows.
    """
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("unifiedamp.output"),
        autoescape=True,
        finalize=_shown,
        undefined=jinja2.StrictUndefined,
    )
    style = Markup(_style(template, environment.get_template("page.css").render()))
    found = environment.get_template(f"{template}.html.j2")
    return found.render(values, width=number(WIDTH), style=style, policy=Markup(_content_policy(style)))


def drawn_or_why(draw: Callable[[], list[Drawing]]) -> tuple[list[Drawing], str]:
    """Return what was drawn, or nothing and the reason: a page without plots is better than none."""
    try:
        return draw(), ""
    except Exception as error:
        return [], f"{type(error).__name__}: {error}"


def _style(template: str, text: str) -> str:
    return f"\n{text.replace('NARROW', NARROW[template]).strip()}\n{OWN[template]}"


def _content_policy(style: str) -> str:
    digest = b64encode(sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"


def _shown(value: object) -> object:
    """Return text made visible; what a template has made is."""
    return value if hasattr(value, "__html__") else visible(value, keep="\t\n")


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
