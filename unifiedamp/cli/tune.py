"""``unifiedamp tune``: a short probe picks policy, initial loss scale and the layers that need float32."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..config import plugins
from ..errors import ConfigError
from ..output.files import check_file, remove_folders, write_whole
from ..workloads.compare.run import TIMEOUT, Options
from ..workloads.configuration import Source
from ..workloads.scripts.compare import ScriptOptions
from ..workloads.tune.prober import TuneGoal, choose, scale_of
from ..workloads.tune.run import default_out
from ..workloads.tune.run import tune as tune_all
from ..workloads.tune.write import as_evidence, base, tuned_text
from ..workloads.workers import Worker
from . import choices
from .about import about
from .named import Assignments, Config, Named, OptionalTarget, RunTimeout
from .script_command import named, only_one, refuse, script_of
from .script_tune import OF_WORKLOADS, tune_command
from .show import print_json
from .time_left import shown_tries
from .tuned_table import show_findings


def tune(
    context: typer.Context,
    workload: OptionalTarget = None,
    config: Config = None,
    assignments: Assignments = None,
    backend: Annotated[str | None, typer.Option(help="torch, tensorflow, mxnet, or a plugin's name.")] = None,
    policies: Annotated[list[str] | None, typer.Option(help="What to try.")] = None,
    steps: Annotated[int, typer.Option(min=10, help="Optimizer steps of each probe.")] = 60,
    tolerance: Annotated[
        float, typer.Option(min=0.0, help="How much higher than float32's the loss may be, as a share of it.")
    ] = 0.02,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in which speed is measured.")] = 5,
    timeout: RunTimeout = TIMEOUT,
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write."),
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Overwrite the file if it is there: the configuration, without --out.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Find the fastest policy that trains as well as float32, and write a configuration with the evidence.

    Example: unifiedamp tune my_model.py --backend torch --out tuned.toml

    With "-- python train.py --my-flags" instead of a workload, your own script is run as it is, once for each try, and
    the table [amp] that was found is written: ua.Amp.from_config("amp.tuned.toml") takes it.

    Each policy is trained for some steps from the workload's first weights: with a loss scale, from the largest initial
    one that skips none of the first ten steps; where the loss is off, with as few layers in float32 as mend it. Those
    that hold are timed interleaved. `unifiedamp train tuned.toml` then trains with the choice.

    Exit code 0: the file is written; 2: wrong arguments, or the workload does not train in float32; 130: Ctrl-C.
    """
    script = script_of(context)
    if script is not None:
        only_one(workload, script)
        refuse(context, OF_WORKLOADS, "belongs to a workload; your script has its own, put its flags after '--'")
        goal = TuneGoal("the script", "", steps, tolerance, rounds)
        tune_command(ScriptOptions(script, timeout=timeout), choices.policies(policies), goal, out, write, json)
        return
    what = Named(named(workload, context), config, assignments, timeout, amp={"backend": backend})
    target = _target(what.source, out, write)
    remove_folders()
    goal = TuneGoal(what.one_backend(), what.mode, steps, tolerance, rounds, what.settings.amp["loss_scale"])
    _tune_workload(what, choices.policies(policies), goal, timeout, target, json)


def _tune_workload(
    what: Named, policies: list[str], goal: TuneGoal, timeout: float, target: Path, json: bool
) -> None:  # fmt: skip
    """Try the policies (none: those worth trying), write the configuration, and show what was found."""
    options = Options(what.target, what.config, what.given, rounds=goal.rounds, timeout=timeout)
    with shown_tries() as show:
        tried = policies or _worth_trying(goal.backend, timeout)
        findings = tune_all(tried, goal, options, show)
    chosen, why = choose(findings)
    head = {key: value for key, value in about("", what.source.file).items() if key != "title"}
    evidence = as_evidence(findings, chosen, why, {**head, "steps": goal.steps, "tolerance": goal.tolerance})
    scale = scale_of(chosen, goal) if chosen.initial_scale is not None else None
    text = base(what.source, target, what.given)
    write_whole(target, tuned_text(text, target.suffix, goal.backend, chosen, scale, evidence))
    if json:
        print_json({"schema": "unifiedamp-tune", "version": 1, "file": str(target), **evidence})
    else:
        show_findings(findings, chosen, why, target)


def _target(source: Source, out: Path | None, write: bool) -> Path:
    target = out or (source.config if write and source.config else default_out(source.file))
    wanted = (source.config.suffix.lower(),) if source.config else (".toml", ".json")
    if target.suffix.lower() not in wanted:
        of = f"in the format of {source.file.name}" if source.config else "as TOML or JSON"
        raise ConfigError(f"--out {target}: it is written {of}, name it {' or '.join(wanted)}")
    if target.is_file() and not write:
        raise ConfigError(f"{target} is there already: pass --write to overwrite it, or another --out")
    return check_file(target, "--out")


def _worth_trying(backend: str, timeout: float) -> list[str]:
    """Return the mixed policies that run and gain something on this machine; asked in a separate process."""
    with Worker("unifiedamp.workloads.probe:make", plugins.load_plugin(backend).sharing) as worker:
        answers = worker.ask({"backend": backend, "measure": False}, timeout=timeout)["policies"]
    mixed = [name for name in answers if name.startswith("mixed_")]
    return [name for name in mixed if answers[name]["ok"] and answers[name]["helps"] is not False]
