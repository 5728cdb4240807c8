"""What a user sees when something is wrong: one line, and an exit code."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ParamSpec

import typer
from typer.core import TyperGroup

from ..errors import AmpError, nearest
from ..output.files import reason
from ..output.signals import Terminated, terminable
from ..visible import visible
from .script_command import split
from .show import complain

P = ParamSpec("P")

NOT_ALL_WELL = 1
USER_ERROR = 2
INTERRUPTED = 130
TERMINATED = 143


def reports_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Turn an ``AmpError`` into one line on standard error and exit code 2, Ctrl-C into exit code 130.

    What the system refuses (a full disk, a folder in a file's place) is one line too, and SIGTERM exit code 143.
    """

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with terminable(), _escaped_warnings(), _flushed_output():
                command(*args, **kwargs)
        except AmpError as error:
            complain(one_line(error))
            raise typer.Exit(USER_ERROR) from None
        except Terminated:
            raise typer.Exit(TERMINATED) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except OSError as error:
            raise typer.Exit(_refused(error)) from None

    return wrapped


def _show_escapes(stream: Any) -> None:
    """Have a terminal that cannot show a character show its escape."""
    if hasattr(stream, "reconfigure") and "utf" not in stream.encoding.lower():
        stream.reconfigure(errors="backslashreplace")


@contextmanager
def _flushed_output() -> Iterator[None]:
    """Write what is printed out before the command ends, so that a full disk is an error."""
    try:
        yield
    finally:
        sys.stdout.flush()


def _refused(error: OSError) -> int:
    """Say what the system refused, and return the exit code; an error that is not the system's is raised again."""
    if error.errno is None:
        raise error
    with suppress(OSError), open(os.devnull, "w") as nowhere:  # or the interpreter's end tries to write once more
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):  # the reader has gone, and knows it
        return NOT_ALL_WELL
    complain(f"{error.filename or 'output'}: {reason(error)}")
    return USER_ERROR


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

    # Of the base's parameters only these two matter here; the others pass through.
    def main(  # type: ignore[override]  # narrower than the base, see above
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **kwargs: Any
    ) -> Any:
        """Run the command that the arguments name."""
        if not standalone_mode:
            return super().main(args, standalone_mode=False, **kwargs)
        _show_escapes(sys.stdout)
        args, script = split(sys.argv[1:] if args is None else args)
        if script is not None:
            kwargs["obj"] = script
        try:
            code = super().main(args, standalone_mode=False, **kwargs)
            sys.stdout.flush()
        except typer.Abort:
            code = INTERRUPTED
        except OSError as error:
            code = _refused(error)
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
