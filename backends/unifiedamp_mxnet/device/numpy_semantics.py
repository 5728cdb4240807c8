"""MXNet 2's numpy semantics in every thread: it turns them on in the main thread alone, and Gluon cannot do without.

They belong to the thread. Each call of the session turns them on where they are off, and off again when it is done.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

from .versions import NUMPY_API, mx

F = TypeVar("F", bound=Callable[..., Any])

_AS_IT_IS = nullcontext()


def numpy_semantics() -> AbstractContextManager[None]:
    """Return a context with MXNet 2's numpy semantics on; with MXNet 1 it leaves the user's choice alone."""
    if not NUMPY_API or (mx.util.is_np_array() and mx.util.is_np_shape()):
        return _AS_IT_IS
    return _turned_on()


@contextmanager
def _turned_on() -> Iterator[None]:
    with mx.util.np_shape(True), mx.util.np_array(True):
        yield


def in_numpy_semantics(function: F) -> F:
    """Run a function inside :func:`numpy_semantics`."""
    if not NUMPY_API:
        return function

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with numpy_semantics():
            return function(*args, **kwargs)

    return run  # type: ignore[return-value]
