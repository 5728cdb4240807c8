"""What a compiled step was traced for: tracing takes far longer than running, so repeated tracing warns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import tensorflow as tf

TOLERATED = 3
"""Traces of one step without a warning: the first batch, a smaller last one, one more."""

ADVICE = {
    "value": "pass numbers that change as tensors (tf.constant, tf.Variable)",
    "shape": "keep the batch's shape (dataset.batch(n, drop_remainder=True), sequences padded to a few lengths)",
    "dtype": "give each argument one dtype",
    "object": "pass the same object at each call, or let the step close over it",
    "structure": "pass the same arguments at each call",
}


class Traces:
    """Counts the traces of one step.

    Args:
        name: of the step.
        xla: whether each trace is compiled by XLA too.
        warn: takes a message, once.
    """

    def __init__(self, name: str, xla: bool, warn: Callable[[str], None]) -> None:
        self._name, self._xla, self._warn = name, xla, warn
        self._last: dict[Hashable, dict[str, Argument]] = {}
        self._counts: Counter[Hashable] = Counter()
        self.count = 0

    def note(self, state: Hashable, arguments: Mapping[str, Any]) -> None:
        """Note a trace.

        Args:
            state: the order of calls it began in; each is traced by itself.
            arguments: the step's, by name.
        """
        self.count += 1
        self._counts[state] += 1
        before, now = self._last.get(state, {}), dict(_flat(arguments))
        self._last[state] = now
        if self._counts[state] == TOLERATED + 1:
            self._warn_of(before, now)

    def _warn_of(self, before: Mapping[str, Argument], now: Mapping[str, Argument]) -> None:
        kinds = {name: _kind(before.get(name), now.get(name)) for name in {**before, **now}}
        changed = {name: kind for name, kind in kinds.items() if kind}
        parts = [f"{name} changed from {before.get(name, 'none')} to {now.get(name, 'none')}" for name in changed]
        advice = dict.fromkeys(ADVICE[kind] for kind in changed.values())
        self._warn(
            f"amp.compile: {self._name} was {'traced and compiled by XLA' if self._xla else 'traced'} {TOLERATED + 1} "
            "times, which takes far longer than running it; before the last time "
            f"{'; '.join([', '.join(parts) or 'nothing changed that its arguments show', *advice])}"
        )


class Argument:
    """The part of an argument that a trace depends on.

    Attributes:
        shape, dtype: of a tensor; None for others.
        value: of others; None for a tensor.
    """

    __slots__ = ("dtype", "shape", "value")

    def __init__(self, value: Any) -> None:
        tensor = isinstance(value, tf.Tensor)
        self.dtype = value.dtype.name if tensor else None
        self.shape = str(value.shape) if tensor else None
        self.value = None if tensor else value

    def __str__(self) -> str:
        if self.dtype is not None:
            return f"{self.dtype} {self.shape}"
        plain = isinstance(self.value, (bool, int, float, complex, str, bytes, type(None)))
        return repr(self.value) if plain else f"one {type(self.value).__name__}"


def _kind(before: Argument | None, now: Argument | None) -> str:
    """Return what changed, a key of :data:`ADVICE`; empty where nothing did."""
    if before is None or now is None or (before.dtype is None) != (now.dtype is None):
        return "structure"
    if before.dtype != now.dtype:
        return "dtype"
    if before.shape != now.shape:
        return "shape"
    if before.value is now.value:
        return ""
    if isinstance(now.value, (bool, int, float, complex, str, bytes, type(None))):
        return "" if before.value == now.value and type(before.value) is type(now.value) else "value"
    return "object"


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Argument]]:
    items: Any = None
    if isinstance(value, Mapping):
        items = [(f"{name}[{key!r}]" if name else str(key), each) for key, each in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(f"{name}[{index}]", each) for index, each in enumerate(value)]
    elif isinstance(value, tf.__internal__.CompositeTensor):
        items = [(name, each) for each in tf.nest.flatten(value, expand_composites=True)[:1]]
    if items is None:
        yield name, Argument(value)
        return
    for path, each in items:
        yield from _flat(each, path)
