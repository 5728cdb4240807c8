"""``required``: marks the methods that a backend must write, and ``required_attribute`` what it must set."""

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


def required_attribute(about: str) -> Any:
    """Stand in the place of an attribute that a backend must set. Until it does, reading it says what it holds.

    Args:
        about: that, as one sentence.
    """
    return _MissingAttribute(about)


class _MissingAttribute:
    def __init__(self, about: str) -> None:
        self._about = about

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        raise UnsupportedError(f"{owner.__module__}.{owner.__name__} has no {self._name} yet. {self._about}")
