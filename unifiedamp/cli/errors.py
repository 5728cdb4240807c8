"""What a user sees when something is wrong: one line, and an exit code."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec

import typer
from typer.core import TyperGroup

from ..errors import AmpError, nearest
from ..terminal import visible
from .show import complain

P = ParamSpec("P")

NOT_ALL_WELL = 1
USER_ERROR = 2
INTERRUPTED = 130


def reports_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Turn an ``AmpError`` into one line on standard error and exit code 2, Ctrl-C into exit code 130."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with _escaped_warnings():
                command(*args, **kwargs)
        except AmpError as error:
            complain(one_line(error))
            raise typer.Exit(USER_ERROR) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None

    return wrapped


def _show_escapes(stream: Any) -> None:
    """Have a terminal that cannot show a character show its escape."""
    if hasattr(stream, "reconfigure") and "utf" not in stream.encoding.lower():
        stream.reconfigure(errors="backslashreplace")


@contextmanager
def _escaped_warnings() -> Iterator[None]:
    """Have warnings, which may hold names of layers, shown with what would steer the terminal escaped."""
    before = warnings.formatwarning
    warnings.formatwarning = lambda *said, **place: visible(before(*said, **place), keep="\t\n")
    try:
        yield
    finally:
        warnings.formatwarning = before


def one_line(error: BaseException) -> str:
    """Return an error's message on one line."""
    return " ".join(str(error).split())


class OneLineGroup(TyperGroup):
    """The command's front: a wrong argument gets one line that says what to type instead, and exit code 2."""

    def main(self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **kwargs: Any) -> Any:  # type: ignore[override]
        """Run the command that the arguments name."""
        if not standalone_mode:
            return super().main(args, standalone_mode=False, **kwargs)
        _show_escapes(sys.stdout)
        try:
            code = super().main(args, standalone_mode=False, **kwargs)
        except typer.Abort:
            code = INTERRUPTED
        except Exception as error:
            # typer brings a copy of click, or imports it: which class this is depends on its version.
            if not hasattr(error, "format_message"):
                raise
            complain(self._line(error))
            code = USER_ERROR
        sys.exit(code if isinstance(code, int) else 0)

    def _line(self, error: Any) -> str:
        said = " ".join(str(error.format_message()).split()).partition(" (Possible options:")[0]
        said = said.partition(" Did you mean")[0].rstrip(".")
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "unifiedamp"
        return f"{said[:1].lower()}{said[1:]}{self._hint(error, context)} (see: {path} --help)"

    def _hint(self, error: Any, context: Any) -> str:
        option = getattr(error, "option_name", None)
        if option and context is not None:
            return nearest(option, _options(context.command.params))
        if context is not None and context.command is self and "'" in str(error.message):
            return nearest(str(error.message).split("'")[1], self.commands)
        return ""


def _options(params: Sequence[Any]) -> list[str]:
    return [name for param in params for name in (*param.opts, *param.secondary_opts) if name.startswith("--")]
