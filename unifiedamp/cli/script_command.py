"""What stands after ``--`` on the command line: the user's own script, run as it is."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..backend.launch import read_launch
from ..config.values import parse_setting
from ..errors import ConfigError

COMMANDS = ("compare", "tune", "record", "forecast", "explain")
"""Those that run a script."""
CLUSTERS = ("TF_CONFIG", "launch.py")
"""What describes a cluster to every program on a host, and starts none."""
EXAMPLE = "python train.py --my-flags"

BackendOption = Annotated[
    list[str] | None, typer.Option(help="NAME=VALUE, a setting of its backend that wins over the script's.")
]
ScriptTimeout = Annotated[
    float, typer.Option(min=1.0, help="Seconds without a sign of life after which the script counts as hung.")
]


def split(args: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Return the arguments before the first ``--``, and the script's command behind it.

    The command is None where there is no ``--``, or the subcommand runs no script.
    """
    words = list(args)
    if "--" not in words:
        return words, None
    place = words.index("--")
    if not any(name in words[:place] for name in COMMANDS):
        return words, None
    return words[:place], words[place + 1 :]


def script_of(context: typer.Context) -> list[str] | None:
    """Return the script's command; None where the subcommand was given no ``--``.

    Raises:
        ConfigError: nothing stands behind it, or no such program; or a launcher started the command several times.
    """
    _check_started_once(context.info_name)
    words: list[str] | None = context.obj
    if words is None:
        return None
    if not words or not words[0]:
        raise ConfigError(f"{context.info_name} --: name the command that runs your script, as in '-- {EXAMPLE}'")
    if shutil.which(words[0]) is None:
        raise ConfigError(f"{words[0]}: {_why_not(words)}")
    return words


def _check_started_once(command: str | None) -> None:
    launch = read_launch(os.environ)
    if launch is not None and launch.launcher not in CLUSTERS:
        raise ConfigError(
            f"{command}: {launch.launcher} started {launch.size} processes, and this command starts its own: run it "
            f"once, with the launcher behind '--': unifiedamp {command} -- torchrun --nproc-per-node 2 train.py"
        )


def _why_not(words: Sequence[str]) -> str:
    path = Path(words[0])
    if path.is_file():
        by = " ".join([Path(sys.executable).name, *words]) if path.suffix == ".py" else f"chmod +x {path}"
        return f"this file is no program; write '-- {by}'" if path.suffix == ".py" else f"not executable: {by}"
    return f"there is no such program; name one that is on the PATH, such as {sys.executable}"


def only_one(named: str | None, words: Sequence[str]) -> None:
    """Refuse a workload beside a script.

    Raises:
        ConfigError: one is named.
    """
    if named is not None:
        raise ConfigError(f"give {named!r} or the script '-- {words[0]} …', not both")


def named(given: str | None, context: typer.Context) -> str:
    """Return what a command works on where it is no script.

    Raises:
        ConfigError: nothing was named.
    """
    if given is None:
        raise ConfigError(
            f"name what to {context.info_name}, or your own script: unifiedamp {context.info_name} -- {EXAMPLE}"
        )
    return given


def refuse(context: typer.Context, options: Iterable[str], why: str) -> None:
    """Refuse options that were given and have no meaning here.

    Raises:
        ConfigError: one was given; ``why`` ends the message.
    """
    for name in options:
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            raise ConfigError(f"--{'set' if name == 'assignments' else name.replace('_', '-')} {why}")


def backend_options(items: Sequence[str] | None) -> dict[str, Any]:
    """Return settings of the script's backend from ``NAME=VALUE``.

    Raises:
        ConfigError: one is no such pair.
    """
    found = {}
    for item in items or ():
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise ConfigError(f"--backend-option takes NAME=VALUE, as in xla=true, got {item!r}")
        found[name.strip()] = parse_setting(value.strip())
    return found
