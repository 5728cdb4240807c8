"""What all commands have in common: ``--json``, ``--quiet``, and values that a shell completes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from copy import copy
from typing import Annotated, Any, get_args, get_origin

import typer

from .. import __version__
from .completion import COMPLETED
from .defaults import default_of
from .streams import only_results, quietly

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors only, no progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON alone on standard output (here, always).")]
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
"""Of the command and its subcommands, which inherit them."""


def conventional(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with what all have.

    It takes ``--quiet`` and ``--json``, with which it prints nothing else on standard output, and completes its values.
    """
    found = inspect.signature(command, eval_str=True)
    own_json = "json" in found.parameters

    @functools.wraps(command)
    def wrapped(*args: Any, quiet: bool, json: bool, **kwargs: Any) -> None:
        if own_json:
            kwargs["json"] = json
        with quietly(quiet), only_results(json):
            command(*args, **kwargs)

    parameters = [_described(each, command.__name__) for each in found.parameters.values()]
    parameters += [] if own_json else [_flag("json", Json)]
    parameters.append(_flag("quiet", Quiet))
    vars(wrapped)["__signature__"] = found.replace(parameters=parameters)
    wrapped.__annotations__ = {each.name: each.annotation for each in parameters}
    return wrapped


def _flag(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)


def _described(parameter: inspect.Parameter, command: str) -> inspect.Parameter:
    """Return a parameter with what completes it, and the words for its default.

    Parameters of one name take the same values on every command.
    """
    if get_origin(parameter.annotation) is not Annotated:
        return parameter
    base, info = get_args(parameter.annotation)[:2]
    info = copy(info)
    info.autocompletion = info.autocompletion or COMPLETED.get(parameter.name)
    words = default_of(command, parameter.name)
    if parameter.default is None and words is not None and not isinstance(info.show_default, str):
        info.show_default = words
    return parameter.replace(annotation=Annotated[base, info])


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"unifiedamp {__version__}")
        raise typer.Exit


def front(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_say_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""
