"""``unifiedamp list`` and ``unifiedamp schema``: what can be named, for people and for editors."""

from __future__ import annotations

from typing import Annotated

import typer

from . import choices
from .names import KINDS
from .show import console, print_json, table
from .streams import results


def list_names(
    kinds: Annotated[
        list[str] | None, typer.Argument(metavar="[KIND]...", help=f"{', '.join(KINDS)}.", show_default="all")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """List the names that options and configurations take: policies, backends, operations, compile modes, ...

    Example: unifiedamp list policies compile-modes

    Exit code 0: listed; 2: there is no such kind.
    """
    wanted = choices.one_of(choices.split(kinds), KINDS, "list") or list(KINDS)
    found = {kind: KINDS[kind][1]() for kind in wanted}
    if json:
        print_json({"schema": "unifiedamp-list", "version": 1, "names": found})
        return
    out = console()
    for kind, names in found.items():
        out.print(table(f"{kind} ({KINDS[kind][0]})", ("name", "meaning"), names.items()))


def schema() -> None:
    """Print the JSON schema of the configuration, with which editors complete and check amp.toml.

    Example: unifiedamp schema > amp.schema.json, and "#:schema ./amp.schema.json" as the first line of amp.toml

    It completes the backends that are registered here, plugins included.

    Exit code 0: printed.
    """
    from ..config.schema import registered_plugins, schema_text

    results().write(schema_text(registered_plugins()))
