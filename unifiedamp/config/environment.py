"""The environment variables that stand for arguments of ``Amp``, and what is said of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import BackendUnavailableError, ConfigError
from ..loss_scale import parse_loss_scale
from ..policy import Policy
from . import plugins

VARIABLES = {"backend": "UNIFIEDAMP_BACKEND", "policy": "UNIFIEDAMP_POLICY", "loss_scale": "UNIFIEDAMP_LOSS_SCALE"}
"""Argument of ``Amp`` → the variable for it. An empty one counts as not set."""

READERS: dict[str, Callable[[str], Any]] = {
    "backend": plugins.load_plugin,
    "policy": Policy.parse,
    "loss_scale": parse_loss_scale,
}


def text_of(argument: str) -> str | None:
    """Return the text of the variable for an argument; None where it is not set.

    Raises:
        ConfigError: it cannot be understood; the message names the variable.
    """
    text = os.environ.get(VARIABLES[argument])
    if text:
        with naming(argument):
            READERS[argument](text)
    return text or None


def origin(argument: str) -> str:
    """Return how ``amp.explain()`` names the variable."""
    return f"environment variable {VARIABLES[argument]}"


@contextmanager
def naming(argument: str) -> Iterator[None]:
    """Put the variable's name before the message of an error."""
    try:
        yield
    except (ConfigError, BackendUnavailableError) as error:
        raise type(error)(f"{origin(argument)}: {error}") from error
