"""``unifiedamp compare -- python train.py``: a user's script under several policies."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..output.files import check_folder, remove_folders
from ..workloads.compare.rows import Row
from ..workloads.scripts.compare import ScriptOptions, compare_script
from . import choices
from .about import about
from .script_command import refuse

OF_WORKLOADS = (
    "config", "assignments", "backends", "batch_sizes", "find_batch_size", "max_batch_size", "epochs", "profile",
)  # fmt: skip
OF_SCRIPTS = ("serial", "loss_scale", "backend_option")
"""Options of ``compare`` that a workload, or a script, has no use for."""

Serial = Annotated[
    bool, typer.Option("--serial", help="A script: one run after another, never two alive at the same time.")
]
ScriptScale = Annotated[
    str | None, typer.Option(help="A script: dynamic, none or a number, where a policy scales losses.")
]
CompareOption = Annotated[
    list[str] | None, typer.Option(help="A script: NAME=VALUE, a setting of its backend that wins over the script's.")
]


def script_folder(command: list[str], out: Path | None, what: str) -> Path:
    """Return the folder for results, checked: ``runs/<what>-<script>`` unless it is named."""
    name = next((Path(word).stem for word in command if word.endswith(".py")), Path(command[0]).name)
    return check_folder(out or Path("runs") / f"{what}-{name}", "--out")


def run_script(context: typer.Context, options: ScriptOptions, policies: Any, compile: Any, out: Path | None,
               write: Any) -> None:  # fmt: skip
    """Compare a script's runs.

    Args:
        context: of the command; options that a script has no use for are refused.
        options: how to run it.
        policies, compile, out: as given on the command line.
        write: saves and shows rows: ``write(run, folder, head)``, with a function of progress and save.
    """
    refuse(context, OF_WORKLOADS, "belongs to a workload; your script has its own data and flags, put them after '--'")
    chosen, modes = choices.policies(policies), choices.compile_modes(compile)
    command = list(options.command)
    folder = script_folder(command, out, "compare")
    folder.mkdir(parents=True, exist_ok=True)
    remove_folders()
    head = about(shlex.join(command), Path(shlex.join(command)))
    head["workload"] = shlex.join(command)

    def run(progress: Any, save: Any) -> list[Row]:
        return compare_script(chosen, modes, replace(options, output=folder / "output"), progress, save)

    write(run, folder, head, max(2, len(chosen)) * max(1, len(modes)))
