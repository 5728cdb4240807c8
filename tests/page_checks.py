"""What holds of every page that a command writes, whatever is on it."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "hr", "img", "input", "wbr"}
DRAWN = {"svg", "path", "rect", "text", "title", "desc", "g"}
TABLES = {"table": {"caption", "thead", "tbody"}, "thead": {"tr"}, "tbody": {"tr"}, "tr": {"th", "td"}}
"""Element → what may stand directly inside it."""
REFERENCES = {"src", "href", "xlink:href", "srcset", "data", "action", "poster", "background", "formaction", "ping"}


class Page(HTMLParser):
    """Reads a page, and fails at what is not well-formed or not allowed.

    Attributes:
        tags: every start tag, in order: (name, attributes).
        words: the text that is shown, without style sheet and titles inside drawings.
        cells: rows of the tables, as text.
        drawings: the text inside each ``<figure>``.
    """

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.style, self.open = [], "", "", []
        self.cells, self.drawings = [], []
        assert text.startswith("<!doctype html>\n")
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice"
        assert "style" not in names, f"<{tag}> has a style attribute, which the policy forbids"
        assert not [name for name in names if name.startswith("on")], f"<{tag}> has a handler"
        if self.open and self.open[-1] in TABLES:
            assert tag in TABLES[self.open[-1]], f"<{tag}> in <{self.open[-1]}>"
        if "svg" in self.open:
            assert tag in DRAWN, f"<{tag}> in a drawing"
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.cells.append([])
        elif tag in ("th", "td"):
            self.cells[-1].append("")
        elif tag == "figure":
            self.drawings.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        raise AssertionError(f"<{tag}/> closes itself, which HTML does not")

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> without a start"
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data):
        if self.open and self.open[-1] == "style":
            self.style += data
            return
        if "figure" in self.open:
            self.drawings[-1] += data
        if not ("svg" in self.open and self.open[-1] == "title"):
            self.words += data
        if self.open and self.open[-1] in ("th", "td"):
            self.cells[-1][-1] += data

    def all(self, tag):
        """The attributes of each element of a name."""
        return [attrs for name, attrs in self.tags if name == tag]


def checked(text):
    """Return a page, after all that every page must be."""
    page = Page(text)
    names = {name for name, _ in page.tags}
    assert not names & {"script", "iframe", "object", "embed", "form", "base", "img"}
    (html,) = page.all("html")
    assert html["lang"] == "en"
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")
    _check_references(page)
    _check_policy(page)
    _check_accessible(page)
    return page


def _check_references(page):
    found = [value for _, attrs in page.tags for name, value in attrs.items() if name in REFERENCES]
    assert all(value.startswith(("data:", "#")) for value in found), found
    assert not re.search(r"url\(|@import|expression\(", page.style)


def _check_policy(page):
    """The policy comes before the style sheet, and allows exactly it."""
    order = [name for name, attrs in page.tags if name == "style" or "http-equiv" in attrs]
    assert order == ["meta", "style"]
    (policy,) = [attrs["content"] for attrs in page.all("meta") if attrs.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    digest = b64encode(sha256(page.style.encode()).digest()).decode()
    assert rules.pop("style-src") == f"'sha256-{digest}'"
    assert rules.pop("img-src") == "data:"
    assert rules == {"default-src": "'none'", "base-uri": "'none'", "form-action": "'none'"}


def _check_accessible(page):
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    for name, attrs in page.tags:
        assert set(attrs.get("aria-labelledby", "").split()) <= set(ids)
        if name == "th":
            assert attrs["scope"] == ("row" if "data-label" in attrs else "col")
        if name == "svg" and "aria-hidden" not in attrs:
            assert attrs["role"] == "img"
            assert len(attrs["aria-labelledby"].split()) == 2
    assert len(page.all("caption")) == len(page.all("table"))
    assert len(page.all("figcaption")) == len(page.all("figure")) == len(page.all("desc"))
    assert len(page.all("h1")) == len(page.all("main")) == 1
