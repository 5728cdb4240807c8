"""What a user sees when something is wrong: one line, and an exit code."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec

import typer

from ..errors import AmpError

P = ParamSpec("P")

USER_ERROR = 2
INTERRUPTED = 130


def reports_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Turn an ``AmpError`` into one line on standard error and exit code 2, Ctrl-C into exit code 130."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except AmpError as error:
            print(f"unifiedamp: {' '.join(str(error).split())}", file=sys.stderr)
            raise typer.Exit(USER_ERROR) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None

    return wrapped
