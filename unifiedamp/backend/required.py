"""``required``: marks the methods that a backend must write."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import UnsupportedError

F = TypeVar("F", bound=Callable[..., Any])


def required(method: F) -> F:
    """Mark a method that a backend must write. Until it does, a call names the method and its contract.

    Not ``abc.abstractmethod``: an incomplete backend can be made, so that its author writes one method after another.
    """

    @functools.wraps(method)
    def missing(self: Any, *_args: Any, **_kwargs: Any) -> Any:
        owner = self if isinstance(self, type) else type(self)
        about = (method.__doc__ or "").strip().partition("\n")[0]
        raise UnsupportedError(f"{owner.__module__}.{owner.__name__} has no {method.__name__} yet. {about}")

    return missing  # type: ignore[return-value]  # the wrapper has the method's signature
