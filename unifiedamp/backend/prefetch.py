"""Batches prepared by a thread while the loop computes."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any

JOIN_SECONDS = 10.0
"""How long a loop that stops early waits for the batch that is being made."""


class Prefetcher:
    """An iterable that prepares batches of ``source`` ahead; each loop over it starts a thread and ends it.

    Args:
        source: the batches.
        size: how many are prepared ahead.
        make: makes a batch native; called in the thread.
        take: called with what ``make`` returned, in the loop's thread, when the batch is wanted.
        around: runs the thread's work; None calls it as it is.
    """

    def __init__(
        self,
        source: Iterable[Any],
        size: int,
        make: Callable[[Any], Any],
        take: Callable[[Any], Any] = lambda made: made,
        around: Callable[[Callable[[], None]], None] = lambda work: work(),
    ) -> None:
        self._source, self._size = source, size
        self._make, self._take, self._around = make, take, around

    def __iter__(self) -> Generator[Any]:
        buffer = _Buffer(self._size)
        worker = threading.Thread(target=self._run, args=(buffer,), name="unifiedamp-prefetch", daemon=True)
        worker.start()
        try:
            for made in buffer:
                yield self._take(made)
        finally:
            buffer.stop()
            worker.join(JOIN_SECONDS)

    def _run(self, buffer: _Buffer) -> None:
        try:
            self._around(lambda: self._fill(buffer))
            buffer.end(None)
        except BaseException as error:
            buffer.end(error)

    def _fill(self, buffer: _Buffer) -> None:
        batches = iter(self._source)
        try:
            while buffer.wants() and (batch := next(batches, _END)) is not _END:
                buffer.put(self._make(batch))
        finally:
            if isinstance(batches, Generator):
                batches.close()

    def __len__(self) -> int:
        return len(self._source)  # type: ignore[arg-type]  # TypeError where it has no length


_END = object()


def prefetch_in_thread(batches: Iterable[Any], size: int, to_native: Callable[[Any], Any]) -> Prefetcher:
    """Return the batches as native ones, ``size`` of them converted ahead by a thread."""

    def native(value: Any) -> Any:
        # Only MXNet itself reads its arrays at once, if the session's framework is another one.
        return to_native(value.asnumpy() if hasattr(value, "asnumpy") else value)

    return Prefetcher(batches, size, functools.partial(convert_batch, to_native=native))


class _Buffer:
    """The batches that the thread has prepared, in order, and the error that ended it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._made: deque[Any] = deque()
        self._changed = threading.Condition()
        self._ended = self._stopped = False
        self._error: BaseException | None = None

    # -- the thread's side ---------------------------------------------------------------------------------------

    def wants(self) -> bool:
        """Wait until there is room for a batch; False when no more is wanted."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or len(self._made) < self._size)
            return not self._stopped

    def put(self, made: Any) -> None:
        """Add a batch."""
        with self._changed:
            self._made.append(made)
            self._changed.notify_all()

    def end(self, error: BaseException | None) -> None:
        """Mark the end, with the error that caused it."""
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    # -- the loop's side -----------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._made or self._ended)
                if not self._made:
                    break
                made = self._made.popleft()
                self._changed.notify_all()
            yield made
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stop the thread; drop what is prepared."""
        with self._changed:
            self._stopped = True
            self._made.clear()
            self._changed.notify_all()


def convert_batch(value: Any, to_native: Callable[[Any], Any]) -> Any:
    """Return a batch with its arrays made native, in nested lists, tuples, named tuples and dicts."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[convert_batch(each, to_native) for each in value])
    if isinstance(value, (list, tuple)):
        return type(value)([convert_batch(each, to_native) for each in value])
    if isinstance(value, Mapping):
        return {key: convert_batch(each, to_native) for key, each in value.items()}
    return to_native(value) if is_array(value) else value


def is_array(value: Any) -> bool:
    """Return whether ``value`` is an array or tensor of some kind; numpy's scalars are none."""
    if hasattr(value, "__dlpack__") or hasattr(value, "asnumpy"):
        return True
    return hasattr(value, "__array__") and hasattr(value, "__len__") and hasattr(value, "dtype")
