"""O1's casts: the model's forward under autocast, and turning that off for a while."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import unifiedamp as ua

from .state import amp_state


class _Casts(threading.local):
    """What this thread has asked for."""

    off = False


_casts = _Casts()


def casts_are_on() -> bool:
    """Tell whether O1's casts are made: O1 is in force, and no ``disable_casts`` is."""
    options = amp_state.opt_properties
    return options is not None and options.patch_torch_functions and not _casts.off


@contextmanager
def disable_casts() -> Iterator[None]:
    """Return a context without O1's casts: models run as they are; at other levels nothing changes.

    Raises:
        StepOrderError: ``initialize`` was not called.
    """
    amp_state.options("disable_casts")
    before, _casts.off = _casts.off, True
    try:
        yield
    finally:
        _casts.off = before


class AutocastForward:
    """A model's ``forward`` inside a session's autocast region, put on the instance; models still copy and pickle.

    Args:
        model: whose forward is replaced.
        session: whose region it is.
    """

    def __init__(self, model: Any, session: ua.Amp) -> None:
        self._plain = model.forward
        self._region: AbstractContextManager[Any] = session.autocast()
        functools.update_wrapper(self, self._plain)  # for those who look at the signature
        model.forward = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model."""
        if _casts.off:
            return self._plain(*args, **kwargs)
        with self._region:
            return self._plain(*args, **kwargs)
