"""``unifiedamp tune``: a short probe picks policy, initial loss scale and the layers that need float32."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.status import Status

from ..config import plugins
from ..errors import ConfigError
from ..output.files import check_file, remove_folders, write_whole
from ..output.terminal import plain
from ..workloads.compare.rows import BASELINE
from ..workloads.compare.run import TIMEOUT, Options
from ..workloads.recipes import find_config, recipe_module
from ..workloads.tune.run import Finding, Prober, TuneGoal, choose, default_out
from ..workloads.tune.run import tune as tune_all
from ..workloads.tune.write import as_evidence, tuned
from ..workloads.workers import Worker
from . import choices
from .about import about
from .show import console, print_json, say, table


def tune(
    recipe: Annotated[str, typer.Argument(help="A recipe's .toml or .json file, or the name of one that is here.")],
    backend: Annotated[str | None, typer.Option(help="torch, tensorflow, mxnet, ... [the recipe's own]")] = None,
    policies: Annotated[
        list[str] | None, typer.Option(help="What to try [the mixed policies that run and gain something here]")
    ] = None,
    steps: Annotated[int, typer.Option(min=10, help="Optimizer steps of each probe.")] = 60,
    tolerance: Annotated[
        float, typer.Option(min=0.0, help="How much higher than float32's the loss may be, as a share of it.")
    ] = 0.02,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in which speed is measured.")] = 5,
    samples: Annotated[int | None, typer.Option(min=1, help="Use the first N samples only [all].")] = None,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds without progress after which a run counts as hung.")
    ] = TIMEOUT,
    out: Annotated[Path | None, typer.Option(help="The file to write [NAME.tuned.toml in this folder].")] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Overwrite the file if it is there: the input, without --out.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Find the fastest policy that trains as well as float32, and write the recipe back with the evidence.

    Example: unifiedamp tune fashion_mnist_conv --backend torch --out tuned.toml

    Each policy is trained for some steps from the recipe's first weights: with a loss scale, from the largest initial
    one that skips none of the first ten steps; where the loss is off, with as few layers in float32 as mend it. Those
    that hold are timed interleaved.

    Exit code 0: the file is written; 2: wrong arguments, or the recipe does not train in float32; 130: Ctrl-C.
    """
    config = find_config(recipe)
    train = {} if samples is None else {"samples": samples}
    settings = recipe_module("settings").read_settings(config, amp={"backend": backend}, train=train)
    target = _target(config, out, write)
    remove_folders()
    name = choices.one_backend(settings.amp["backend"])
    mode = str(settings.amp["compile"]) if settings.train.compile else "off"
    goal = TuneGoal(name, mode, steps, tolerance, rounds, settings.amp["loss_scale"])
    options = Options(config, train, rounds, timeout=timeout)
    with console(stderr=True).status("") as status:
        begun = functools.partial(_begun, status)
        tried = choices.policies(policies) or _worth_trying(name, timeout)
        findings = tune_all(tried, goal, options, begun)
    chosen, why = choose(findings)
    head = {key: value for key, value in about("", config).items() if key != "title"}
    evidence = as_evidence(findings, chosen, why, {**head, "steps": steps, "tolerance": tolerance})
    scale = Prober(goal, options, begun).scale_setting(chosen) if chosen.initial_scale is not None else None
    write_whole(target, tuned(config, name, chosen, scale, evidence))
    if json:
        print_json({"schema": "unifiedamp-tune", "version": 1, "file": str(target), **evidence})
    else:
        _show(findings, chosen, why, target)


def _target(config: Path, out: Path | None, write: bool) -> Path:
    target = out or (config if write else default_out(config))
    if target.suffix.lower() != config.suffix.lower():
        raise ConfigError(f"--out {target}: it is written in the format of {config.name}, name it {config.suffix}")
    if target.is_file() and not write:
        raise ConfigError(f"{target} is there already: pass --write to overwrite it, or another --out")
    return check_file(target, "--out")


def _worth_trying(backend: str, timeout: float) -> list[str]:
    """Return the mixed policies that run and gain something on this machine; asked in a separate process."""
    with Worker("unifiedamp.workloads.probe:make", plugins.load_plugin(backend).sharing) as worker:
        answers = worker.ask({"backend": backend, "measure": False}, timeout=timeout)["policies"]
    mixed = [name for name in answers if name.startswith("mixed_")]
    return [name for name in mixed if answers[name]["ok"] and answers[name]["helps"] is not False]


def _show(findings: list[Finding], chosen: Finding, why: str, target: Path) -> None:
    out = console()
    columns = ("policy", "loss", "initial scale", "float32 layers", "samples/s", "x float32", "verdict")
    rows: list[tuple[Any, ...]] = []
    for one in findings:
        verdict = "chosen" if one is chosen else one.reason or "trains as well"
        rows.append((one.policy, _or_dash(one.loss, ".4f"), _or_dash(one.initial_scale, "g"),
                     ", ".join(one.float32_layers) or "-", _or_dash(one.samples_per_second, ".0f"), _speed(one),
                     verdict))  # fmt: skip
    out.print(table("What was tried", columns, rows, right=("loss", "initial scale", "samples/s", "x float32"),
                    verdicts=("verdict",)))  # fmt: skip
    say(out, f"{chosen.policy}: {why}", "bold")
    say(out, f"written to {target}")


def _begun(status: Status, what: str) -> None:
    status.update(plain(what))


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _speed(one: Finding) -> str:
    if one.ratio is None:
        return "-"
    same = one.policy == BASELINE
    return "1" if same else f"{one.ratio:.2f} ({one.ratio_low:.2f}-{one.ratio_high:.2f})"
