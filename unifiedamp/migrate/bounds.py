"""How long and how deep a file may be: read before any parser sees it, in time that grows with the length alone."""

from __future__ import annotations

import re

MAX_BYTES = 2_000_000
MAX_LINES = 20_000
MAX_USES = 1_000
"""How often a file may name an old API's calls."""
MAX_DEPTH = 500
"""How deep expressions and ``elif`` chains may nest: operators, brackets and attributes, one inside the other."""

_TOKEN = re.compile(
    rb"""
    (?P<skip>[ \t\f\r]+|\#[^\n]*|\\\r?\n)
  | (?P<text>[rRbBuUfFtT]{0,2}(?:'''(?:\\.|[^\\])*?(?:'''|\\?\Z)|\"\"\"(?:\\.|[^\\])*?(?:\"\"\"|\\?\Z)
            |'(?:\\.|[^'\\\n])*(?:'|\\?\Z|(?=\n))|"(?:\\.|[^"\\\n])*(?:"|\\?\Z|(?=\n))))
  | (?P<word>[A-Za-z_0-9\x80-\xff]+)
  | (?P<end>[\n;])
  | (?P<open>[(\[{])
  | (?P<close>[)\]}])
  | (?P<comma>,)
  | (?P<mark>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_NESTING = frozenset({b"not", b"and", b"or", b"if", b"else", b"in", b"is", b"await", b"yield"})
_STAYING = frozenset({b"lambda", b"for"})  # a comma does not end what these nest
_FIELD = re.compile(rb"\{([^{}]*)")
_INNER = re.compile(rb"\b(?:not|if|else|lambda|and|or|for)\b|[^\w\s]")


def too_big(content: bytes, uses: int = 0) -> str | None:
    """Return why a file is not read at all, or None.

    Args:
        content: the file's bytes.
        uses: how often it names an old API's calls.
    """
    if uses > MAX_USES:
        return f"it names old AMP calls {uses:,} times; migrate reads files with up to {MAX_USES:,}"
    if len(content) > MAX_BYTES:
        return f"it has {len(content):,} bytes; migrate reads files of up to {MAX_BYTES:,}"
    lines = content.count(b"\n")
    if lines > MAX_LINES:
        return f"it has {lines:,} lines; migrate reads files of up to {MAX_LINES:,}"
    if b"\0" in content:
        return "it has null bytes, which Python does not read"
    line = _too_deep(content)
    return None if line is None else f"line {line} nests more than {MAX_DEPTH} expressions or branches; shorten it"


def _too_deep(content: bytes) -> int | None:
    """Return the line at which the nesting goes too deep: an estimate from above, from tokens alone."""
    depth, line, fresh = _Depth(), 1, True
    column, start = 0, 0
    for match in _TOKEN.finditer(content):
        kind, token = match.lastgroup, match.group()
        if kind == "word" and fresh:
            column = match.start() - start
        depth.add(kind or "mark", token, column if fresh else -1)
        if depth.nested > MAX_DEPTH:
            return line
        if kind != "skip":
            fresh = kind == "end" and depth.level == 0
        breaks = token.count(b"\n") if kind in ("skip", "text", "end") else 0
        if breaks:
            line, start = line + breaks, match.end()
    return None


class _Depth:
    """What is nested where the scan stands."""

    def __init__(self) -> None:
        self._soft, self._hard = [0], [0]  # by bracket level: up to the next comma, and up to the closing bracket
        self._total = 0
        self._elifs: dict[int, int] = {}
        self._chain = 0

    @property
    def nested(self) -> int:
        return max(self._total, self._chain)

    @property
    def level(self) -> int:
        return len(self._soft) - 1

    def add(self, kind: str, token: bytes, column: int) -> None:
        """Take one token; ``column`` is where the line's statement begins, -1 within one."""
        if kind == "open":
            self._more(self._soft, 1)
            self._soft.append(0)
            self._hard.append(0)
        elif kind == "close":
            self._close()
        elif kind == "comma":
            self._total -= self._soft[-1]
            self._soft[-1] = 0
        elif kind == "end" and self.level == 0:
            self._soft, self._hard, self._total, self._chain = [0], [0], 0, 0
        elif kind == "word":
            self._word(token, column)
        elif kind == "text":
            self._more(self._soft, 1 + self._fields(token))
        elif kind == "mark":
            self._more(self._soft, 1)

    def _word(self, token: bytes, column: int) -> None:
        if token in _NESTING:
            self._more(self._soft, 1)
        elif token in _STAYING:
            self._more(self._hard, 1)
        if column >= 0 and token == b"if":
            self._elifs[column] = 0
        elif column >= 0 and token == b"elif":
            self._chain = self._elifs[column] = self._elifs.get(column, 0) + 1

    def _more(self, counts: list[int], by: int) -> None:
        counts[-1] += by
        self._total += by

    def _close(self) -> None:
        if self.level:
            self._total -= self._soft.pop() + self._hard.pop()

    @staticmethod
    def _fields(text: bytes) -> int:
        """Return how deep a formatted string's fields may nest."""
        if b"f" not in text[:2].lower():
            return 0
        return max((len(_INNER.findall(field)) for field in _FIELD.findall(text)), default=0)
