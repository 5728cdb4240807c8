"""MXNet 2's numpy semantics in every thread: MXNet turns them on in the main thread alone, and Gluon needs them.

They belong to the thread. Each call of the session turns them on where they are off, and off again when it is done.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import ParamSpec, TypeVar

from ..mxnet_api import NUMPY_API, mx

P = ParamSpec("P")
R = TypeVar("R")

_UNCHANGED = nullcontext()


def numpy_semantics() -> AbstractContextManager[None]:
    """Return a context with MXNet 2's numpy semantics on; with MXNet 1 it leaves the user's choice alone."""
    if not NUMPY_API or (mx.util.is_np_array() and mx.util.is_np_shape()):
        return _UNCHANGED
    return _turned_on()


@contextmanager
def _turned_on() -> Iterator[None]:
    with mx.util.np_shape(True), mx.util.np_array(True):
        yield


def in_numpy_semantics(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function inside :func:`numpy_semantics`."""
    if not NUMPY_API:
        return function

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with numpy_semantics():
            return function(*args, **kwargs)

    return run
