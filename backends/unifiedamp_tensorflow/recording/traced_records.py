"""The records of a recording or a forecast: the one that a step writes to, and those of traces that ran."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

from .._types import Graph, Tensor
from ..precision.tapes import current_home


class Record(Protocol):
    """What one eager step, or one trace, records."""

    home: Graph | None
    """The graph of its tensors; None for eager."""

    def release_tensors(self) -> dict[str, Tensor]:
        """Return the numbers as few tensors, and drop them with their graph."""


R = TypeVar("R", bound=Record)


class TracedRecords(Generic[R]):
    """Eager steps write to one record; each trace writes to a new one, whose tensors each of its runs returns.

    Args:
        make: makes a record for a graph, or for eager.

    Attributes:
        current: the record that is written to now.
        taken: records of traces, with what their runs returned.
    """

    def __init__(self, make: Callable[[Graph | None], R]) -> None:
        self._make = make
        self.current = make(None)
        self.taken: list[tuple[R, Mapping[str, Tensor]]] = []

    @contextmanager
    def tracing(self, records: list[Any]) -> Iterator[dict[int, dict[str, Tensor]]]:
        """Trace a step inside; its record goes to ``records``, those of one key.

        Yields a mapping that at the end holds what runs of the trace must return for :meth:`take`.
        """
        outside, self.current = self.current, self._make(current_home())
        recorded: dict[int, dict[str, Tensor]] = {}
        try:
            yield recorded
            records.append(self.current)
            recorded[len(records) - 1] = self.current.release_tensors()
        finally:
            self.current = outside

    def take(self, recorded: Mapping[int, Mapping[str, Tensor]], records: Sequence[Any]) -> None:
        """Take what a run of a trace returned."""
        ((number, tensors),) = recorded.items()
        self.taken.append((records[number], tensors))

    def here(self) -> bool:
        """Whether what is computed now can be recorded: eager, or in the trace that is being recorded."""
        return current_home() is self.current.home
