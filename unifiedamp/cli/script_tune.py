"""``unifiedamp tune -- python train.py``: the table ``[amp]`` for a user's script."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..output.files import check_file, remove_folders, write_whole
from ..workloads.scripts.compare import ScriptOptions
from ..workloads.scripts.tune import Tuned, tune_script
from ..workloads.tune.prober import TuneGoal, choose, scale_of
from ..workloads.tune.write import as_evidence, tuned_text
from .about import about
from .show import console, print_json, say
from .time_left import shown_tries
from .tuned_table import show_findings

OF_WORKLOADS = ("backend", "config", "assignments")
"""Options of ``tune`` that a script has no use for."""
DEFAULT = Path("amp.tuned.toml")


def tune_command(
    options: ScriptOptions, policies: Sequence[str], goal: TuneGoal, out: Path | None, write: bool, json: bool
) -> None:
    """Tune a script and write what was found.

    Args:
        options: how to run it.
        policies: what to try; empty for those that gain something.
        goal: what to search for.
        out: the file to write.
        write: overwrite it, or change its table ``[amp]``.
        json: print JSON.

    Raises:
        ConfigError: the file cannot be written, or the script does not train in float32.
    """
    target = _target(out or DEFAULT, write)
    text = target.read_text(encoding="utf-8") if target.is_file() else ""
    remove_folders()
    with shown_tries() as show:
        found = tune_script(policies, goal, options, show)
    chosen, why = choose(found.findings)
    evidence = as_evidence(found.findings, chosen, why, _head(options, found))
    for row in evidence["policies"].values():
        row |= {"steps_per_second": row.pop("samples_per_second")} if "samples_per_second" in row else {}
    scale = scale_of(chosen, found.goal) if chosen.initial_scale is not None else None
    write_whole(target, tuned_text(text, target.suffix, found.goal.backend, chosen, scale, evidence))
    if json:
        print_json({"schema": "unifiedamp-tune", "version": 1, "file": str(target), **evidence})
        return
    show_findings(found.findings, chosen, why, target, unit="steps")
    for note in evidence["notes"]:
        say(console(), note, "dim")
    say(console(), f"use it: ua.Amp.from_config({str(target)!r})")


def _target(target: Path, write: bool) -> Path:
    if target.suffix.lower() not in (".toml", ".json"):
        raise ConfigError(f"--out {target}: name a .toml or a .json file")
    if target.is_file() and not write:
        raise ConfigError(f"{target} is there already: pass --write to overwrite it, or another --out")
    return check_file(target, "--out")


def _head(options: ScriptOptions, found: Tuned) -> dict[str, Any]:
    command = shlex.join(options.command)
    head: Mapping[str, Any] = about(command, Path(command))
    said = list(found.session["said"])
    if found.noise:
        said.append(
            f"two runs in float32 differ by {found.noise:.2%} in their loss; tolerance {found.goal.tolerance:.2%}"
        )
    return {
        **{key: value for key, value in head.items() if key not in ("title", "workload")},
        "script": command,
        "framework": found.session["framework"],
        "device": found.session["device"],
        "steps": found.goal.steps,
        "tolerance": found.goal.tolerance,
        "notes": said,
    }
