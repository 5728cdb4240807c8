"""Tables that fold into records where the terminal is too narrow for their columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from ..visible import plain, visible

GAP = 3
"""Characters between the columns of a table, and between the fields of a record."""
INDENT = 2
TEXT = 28
"""Characters that a column of sentences needs, at least."""
EMPTY = ("", "-")
"""Cells that a record leaves out."""
STYLES = {"good": "green", "bad": "bold red", "warn": "yellow"}
VERDICTS = {
    "good": ("done", "works", "runs", "chosen", "trains as well", "killed", "native"),
    "warn": ("runs but gains nothing", "refused", "waiting", "trained", "emulated", "no effect", "not applicable"),
    "bad": ("failed", "cannot", "survived"),
}
"""Tone → the words that a verdict begins with."""


def tone_of(verdict: str) -> str:
    """Return "good", "bad", "warn", or nothing where the words are none of a verdict's."""
    said = verdict.lower()
    found = [(len(word), tone) for tone, words in VERDICTS.items() for word in words if said.startswith(word)]
    return max(found)[1] if found else ""


class FoldingTable:
    """A table, or one record per row where the columns do not fit.

    Args:
        title: stands above it.
        columns: the headings.
        rows: cells, as text.
        right: the columns of numbers.
        verdicts: the columns that are colored by what they say.
        heads: how many of the first columns name a row; they are the heading of its record.
    """

    def __init__(
        self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], right: Iterable[str] = (),
        verdicts: Iterable[str] = (), heads: int = 1,
    ) -> None:  # fmt: skip
        self._title, self._columns = title, list(columns)
        self._rows = [[visible(cell) for cell in row] for row in rows]
        self._right, self._verdicts, self._heads = set(right), set(verdicts), heads

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, or its records."""
        if self.needed <= options.max_width:
            yield self._table()
            return
        yield Text(visible(self._title), style="bold")
        records = [self._fields(row) for row in self._rows]
        layout = Layout.of([fields for _, fields in records], options.max_width)
        for heading, fields in records:
            yield Text("")
            yield from heading.wrap(console, options.max_width, overflow="fold")
            yield from layout.lines(fields, console)
        yield Text("")

    @property
    def needed(self) -> int:
        """The width from which it is shown as a table: sentences wrap, names and numbers do not."""
        return sum(map(self._needed, range(len(self._columns)))) + GAP * len(self._columns)

    def _needed(self, place: int) -> int:
        cells = [row[place] for row in self._rows]
        natural = max(map(cell_len, [*cells, self._columns[place]]))
        if self._columns[place] in self._right:
            return natural
        words = (cell_len(word) for cell in cells for word in cell.split())
        return min(natural, max([TEXT, cell_len(self._columns[place]), *words]))

    def _table(self) -> Table:
        made = Table(title=plain(self._title), title_justify="left", title_style="bold", box=SIMPLE_HEAD,
                     pad_edge=False)  # fmt: skip
        for place, name in enumerate(self._columns):
            right = name in self._right
            # rich narrows the widest columns first, also below their longest word
            made.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=right,
                            min_width=self._needed(place))  # fmt: skip
        for row in self._rows:
            made.add_row(*(self._cell(name, cell) for name, cell in zip(self._columns, row, strict=True)))
        return made

    def _cell(self, column: str, cell: str) -> Text:
        tone = tone_of(cell) if column in self._verdicts else ""
        return Text(cell, style=STYLES.get(tone, ""))

    def _fields(self, row: Sequence[str]) -> tuple[Text, dict[str, Text]]:
        """Return a record: its heading, and label → value."""
        heading = " ".join(cell for cell in row[: self._heads] if cell not in EMPTY)
        rest = zip(self._columns[self._heads :], row[self._heads :], strict=True)
        return Text(heading, style="bold"), {name: self._cell(name, cell) for name, cell in rest if cell not in EMPTY}


@dataclass(frozen=True)
class Layout:
    """Where the fields of all records of a table stand: short ones side by side, then long ones, one per line.

    Attributes:
        width: of the terminal.
        name: of the longest label, and a space.
        value: of the longest value of a short field.
        long: labels of the fields that are not short in some record.
    """

    width: int
    name: int
    value: int
    long: frozenset[str]

    @classmethod
    def of(cls, records: Sequence[Mapping[str, Text]], width: int) -> Layout:
        """Return a layout that suits all records."""
        every = [(label, value.cell_len) for fields in records for label, value in fields.items()]
        name = max((cell_len(label) for label, _ in every), default=0) + 1
        half = (width - INDENT - GAP) // 2
        long = frozenset(label for label, size in every if name + size > half)
        return cls(width, name, max((size for label, size in every if label not in long), default=0), long)

    def lines(self, fields: Mapping[str, Text], console: Console) -> Iterator[Text]:
        """Yield the lines of one record; ``console`` wraps long values."""
        short = [label for label in fields if label not in self.long]
        across = max(1, (self.width - INDENT + GAP) // (self.name + self.value + GAP))
        for first in range(0, len(short), across):
            yield self._side_by_side({label: fields[label] for label in short[first : first + across]})
        for label in [label for label in fields if label in self.long]:
            wrapped = fields[label].wrap(console, max(10, self.width - INDENT - self.name), overflow="fold")
            for number, line in enumerate(wrapped):
                line.rstrip()
                yield Text(" " * INDENT) + self._label("" if number else label) + line

    def _side_by_side(self, fields: Mapping[str, Text]) -> Text:
        line = Text(" " * INDENT)
        for label, value in fields.items():
            line = line + self._label(label) + value + Text(" " * (self.value + GAP - value.cell_len))
        line.rstrip()
        return line

    def _label(self, label: str) -> Text:
        return Text(label + " " * (self.name - cell_len(label)), style="dim")
