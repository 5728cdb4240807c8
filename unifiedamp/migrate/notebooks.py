"""Jupyter notebooks: the code cells are migrated as one program, and everything else in the file keeps its bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..errors import ConfigError
from .engine import migrate
from .report import Finding, Migration

_CELL = "__unifiedamp_cell_{}__"
_BREAK = re.compile(r"^__unifiedamp_cell_(\d+)__$", re.MULTILINE)
_LINE = "__unifiedamp_line_{}__"
_PUT_BACK = re.compile(r"__unifiedamp_line_(\d+)__")
_MAGIC = re.compile(r"^(?P<indent>\s*)(?P<rest>[%!?].*|[\w.]+\?{1,2}|[\w., ()]+=\s*[!%].*)$")


class Cell(NamedTuple):
    """A code cell: its number in the notebook from 1, its text, and where its source stands in the file."""

    number: int
    text: str
    start: int
    end: int


def migrate_notebook(path: str, content: bytes, to: str = "amp") -> Migration:
    """Migrate a notebook's code cells.

    Args:
        path: what messages call the file.
        content: its bytes; only the sources of changed cells are written anew.
        to: see ``migrate``.

    Raises:
        ConfigError: it is no notebook, its code is not Python, or a change would go across cells.
    """
    raw = _text(path, content)
    cells = [cell for cell in _cells(path, raw) if not cell.text.lstrip().startswith("%%")]
    lines: list[str] = []
    program = f"\n{_CELL.format('{}')}\n".join(_plain(cell.text, lines) for cell in cells)
    for index in range(1, len(cells)):
        program = program.replace(_CELL.format("{}"), _CELL.format(index), 1)
    done = migrate(path, program.encode(), to)
    findings = tuple(_in_cell(found, program, cells) for found in done.findings)
    if not done.changed:
        return Migration(path, content, content, (), findings)
    after = _with_cells(raw, cells, _apart(path, done.after.decode(), len(cells), lines))
    return Migration(path, content, after.encode(), done.apis, findings)


def _text(path: str, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeError:
        raise ConfigError(f"{path}: a notebook is a text in UTF-8, and this is none") from None


# -- cells and one program ---------------------------------------------------------------------------------------


def _plain(text: str, lines: list[str]) -> str:
    """Return a cell's text with a name in place of each line that is IPython's and not Python's."""
    made = []
    for line in text.split("\n"):
        found = _MAGIC.match(line)
        if found is not None:
            lines.append(found["rest"])
            line = found["indent"] + _LINE.format(len(lines) - 1)
        made.append(line)
    return "\n".join(made)


def _apart(path: str, program: str, count: int, lines: Sequence[str]) -> list[str]:
    parts = _BREAK.split(program)
    if [int(number) for number in parts[1::2]] != list(range(1, count)):
        raise ConfigError(f"{path}: a change would go across cells; put model, optimizer and loop into one cell")
    texts = parts[::2]
    texts[1:] = [text.removeprefix("\n") for text in texts[1:]]
    texts[:-1] = [text.removesuffix("\n") for text in texts[:-1]]
    return [_PUT_BACK.sub(lambda found: lines[int(found[1])], text) for text in texts]


def _in_cell(found: Finding, program: str, cells: Sequence[Cell]) -> Finding:
    before = program.split("\n")[: found.line - 1]
    breaks = [place for place, line in enumerate(before) if _BREAK.match(line)]
    line = found.line - (breaks[-1] + 1 if breaks else 0)
    return replace(found, what=f"cell {cells[len(breaks)].number}, line {line}: {found.what}")


# -- the file ----------------------------------------------------------------------------------------------------


def _with_cells(raw: str, cells: Sequence[Cell], texts: Sequence[str]) -> str:
    for cell, text in reversed(list(zip(cells, texts, strict=True))):
        if text != cell.text:
            raw = raw[: cell.start] + _source(text, raw[cell.start : cell.end], raw.isascii()) + raw[cell.end :]
    return raw


def _source(text: str, old: str, ascii_only: bool) -> str:
    """Return a cell's source as JSON, in the form that it had: one text, or a list of lines on a line each."""
    if not old.startswith("["):
        return json.dumps(text, ensure_ascii=ascii_only)
    lines = [json.dumps(line, ensure_ascii=ascii_only) for line in text.splitlines(keepends=True)]
    first = re.match(r"\[(\s*)", old)
    last = re.search(r"(\s*)\]$", old)
    opening, closing = first[1] if first else "", last[1] if last else ""
    between = f",{opening or ' '}"
    return f"[{opening}{between.join(lines)}{closing}]"


def _cells(path: str, raw: str) -> Iterator[Cell]:
    try:
        spans = dict(_Spans(raw).found())
        cells = json.loads(raw)["cells"]
        for index, cell in enumerate(cells):
            if cell["cell_type"] == "code":
                source = cell["source"]
                text = source if isinstance(source, str) else "".join(source)
                yield Cell(index + 1, text, *spans[index])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(f"{path}: this is no Jupyter notebook of format 4") from None


class _Spans:
    """Where in a notebook's text the source of each cell stands."""

    def __init__(self, raw: str) -> None:
        self._raw, self._at = raw, 0
        self._decoder = json.JSONDecoder()

    def found(self) -> Iterator[tuple[int, tuple[int, int]]]:
        for key in self._members():
            if key != "cells":
                self._skip()
                continue
            for index in self._items():
                for name in self._members():
                    start = self._space()
                    self._skip()
                    if name == "source":
                        yield index, (start, self._at)

    def _space(self) -> int:
        while self._at < len(self._raw) and self._raw[self._at] in " \t\r\n":
            self._at += 1
        return self._at

    def _skip(self) -> Any:
        value, self._at = self._decoder.raw_decode(self._raw, self._space())
        return value

    def _take(self, mark: str) -> bool:
        if self._raw[self._space() : self._at + 1] != mark:
            return False
        self._at += 1
        return True

    def _members(self) -> Iterator[str]:
        yield from self._each("{", "}", lambda: self._key())

    def _items(self) -> Iterator[int]:
        count = iter(range(len(self._raw)))
        yield from self._each("[", "]", lambda: next(count))

    def _each(self, first: str, last: str, read: Any) -> Iterator[Any]:
        if not self._take(first):
            raise ValueError(f"no {first}")
        while not self._take(last):
            yield read()
            self._take(",")

    def _key(self) -> str:
        key = self._skip()
        if not isinstance(key, str) or not self._take(":"):
            raise ValueError("no key")
        return key
