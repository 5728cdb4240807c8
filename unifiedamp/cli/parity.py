"""The part of ``unifiedamp compare`` that ``--parity`` asks for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from ..errors import ConfigError
from ..output.files import write_whole
from ..output.terminal import plain
from ..workloads.compare.parity import Place, parity
from ..workloads.compare.run import Options
from ..workloads.compare.write import dump
from .errors import NOT_ALL_WELL
from .show import console, finite, print_json, say


def show_parity(
    backends: Sequence[str],
    policies: Sequence[str],
    mode: str,
    size: int,
    steps: int,
    options: Options,
    folder: Path,
    json: bool,
) -> None:
    """Run the comparison, write ``parity.json``, and say where backends part.

    Raises:
        ConfigError: a single backend has nothing to be compared with.
        typer.Exit: 1, when two part or one failed.
    """  # fmt: skip
    if len(backends) < 2:
        raise ConfigError(f"--parity compares backends with each other: name two at least (got {', '.join(backends)})")
    with console(stderr=True).status("") as status:
        rows = parity(backends, policies, mode, size, steps, options, lambda what: status.update(plain(what)))
    write_whole(folder / "parity.json", dump(finite(rows)))
    if json:
        print_json(rows)
    else:
        out = console()
        for row in rows:
            say(out, sentence(row, steps))
        say(out, f"parity.json: {folder}", "dim")
    if any(row.get("failed") or row.get("diverged") for row in rows):
        raise typer.Exit(NOT_ALL_WELL)


def sentence(row: dict[str, Any], steps: int) -> str:
    """Return a row of :func:`parity` in words."""
    head = f"{row['policy']} ({row['dtype']}), {' and '.join(row['backends'])}"
    if "failed" in row:
        return f"{head}: failed: {row['failed']}"
    if row["diverged"]:
        return f"{head}: diverge at {Place(**row['diverged'])}"
    nearest = f"; nearest to it: {Place(**row['closest'])}" if row["closest"] else ""
    return f"{head}: {steps} steps without divergence{nearest}"
