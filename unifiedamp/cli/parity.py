"""``unifiedamp parity``: the first step, layer and dtype at which backends diverge."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ConfigError
from ..output.files import check_folder, remove_folders, write_whole
from ..workloads.compare.parity import Place
from ..workloads.compare.parity import parity as run_all
from ..workloads.compare.rows import BASELINE
from ..workloads.compare.run import TIMEOUT, Options
from ..workloads.compare.write import dump
from . import choices
from .errors import NOT_ALL_WELL
from .named import Assignments, Config, Named, RunTimeout, Target
from .show import console, finite, print_json, say
from .time_left import shown_tries


def parity(
    workload: Target,
    config: Config = None,
    assignments: Assignments = None,
    backends: Annotated[list[str] | None, typer.Option(help="Two at least.")] = None,
    policies: Annotated[list[str] | None, typer.Option(help="float32,mixed_bfloat16,...")] = None,
    compile: Annotated[str | None, typer.Option(help="off, default or max of amp.compile.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps to compare.")] = 5,
    timeout: RunTimeout = TIMEOUT,
    out: Annotated[Path | None, typer.Option(help="Where parity.json goes.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of sentences.")] = False,
) -> None:
    """Train a workload for some steps on each backend; name the first place where two differ beyond rounding.

    Example: unifiedamp parity my_model.py --backends torch,tensorflow --policies float32

    The workload exports its weights under the same names on each backend (export_weights), and starts from the same.

    Exit code 0: no backends diverge; 1: two do, or a run failed; 2: wrong arguments; 130: Ctrl-C.
    """
    named = Named(workload, config, assignments, timeout)
    chosen = choices.policies(policies) or [BASELINE]
    mode = choices.compile_modes([compile] if compile else None) or [named.mode]
    folder = check_folder(out or Path("runs") / f"parity-{named.source.file.stem}", "--out")
    names = named.backends(backends)
    if len(names) < 2:
        raise ConfigError(f"parity compares backends with each other: name two at least (got {', '.join(names)})")
    folder.mkdir(parents=True, exist_ok=True)
    remove_folders()
    options = Options(workload, config, named.given, timeout=timeout)
    _parity(names, chosen, mode[0], steps, options, folder, json)


def _parity(
    names: Sequence[str], policies: Sequence[str], mode: str, steps: int, options: Options, folder: Path, json: bool
) -> None:
    with shown_tries() as show:
        rows = run_all(names, policies, mode, None, steps, options, show)
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
