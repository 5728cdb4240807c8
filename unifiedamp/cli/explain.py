"""``unifiedamp explain``: what a configuration becomes, before training."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..config.arguments import read_arguments
from ..errors import AmpWarning
from ..explain.layers import layer_rows
from ..session import Amp
from ..workloads.compare.run import TIMEOUT
from ..workloads.configuration import read_settings, read_source
from ..workloads.definition.reference import is_reference
from ..workloads.definition.settings import read_assignments
from ..workloads.scripts.compare import ScriptOptions
from ..workloads.scripts.single import explain_script
from . import choices
from .named import Assignments
from .script_command import named, only_one, refuse, script_of
from .show import console, print_json, say, table


def explain(
    context: typer.Context,
    config: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="A .toml or .json file, or a workload: FILE.py or FILE.py:NAME."),
    ] = None,
    backend: Annotated[str | None, typer.Option(help="torch, tensorflow, mxnet, or a plugin's name.")] = None,
    policy: Annotated[str | None, typer.Option(help="float32, mixed_bfloat16, mixed_float16, O1, ...")] = None,
    assignments: Assignments = None,
    layers: Annotated[
        bool, typer.Option("--layers", help="Prepare the workload's model too: its layers, and advice on their sizes.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="A script: seconds without a sign of life after which it counts as hung.")
    ] = TIMEOUT,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show the native calls and values that a configuration becomes, what is emulated, and what has no effect.

    Example: unifiedamp explain my_model.py --backend torch --policy mixed_bfloat16

    Of a workload, the model is prepared, and its layers are listed; of a configuration that names one, with --layers.

    With "-- python train.py --my-flags" instead, your own script is run as it is up to its first step; the plan is that
    of its session, with the layers of its models.

    Exit code 0: the configuration can run here; 2: it cannot, or cannot be read (the reason is printed).
    """
    script = script_of(context)
    if script is not None:
        only_one(config, script)
        refuse(
            context, ("backend", "layers", "assignments"),
            "belongs to a configuration; your script names its own backend",
        )  # fmt: skip
        found = explain_script(ScriptOptions(script, timeout=timeout), policy)
        print_json(found) if json else show_plan(found)
        return
    file = named(config, context)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with_layers = layers or assignments or is_reference(file)
        found = _with_layers(file, assignments, backend, policy) if with_layers else _plan(file, backend, policy)
    messages = [str(one.message) for one in caught if issubclass(one.category, AmpWarning)]
    found["warnings"] = list(dict.fromkeys(messages))
    print_json(found) if json else show_plan(found)


def _plan(config: str, backend: str | None, policy: str | None) -> dict[str, Any]:
    arguments = read_arguments(Path(config), {"backend": backend, "policy": policy})
    choices.one_backend(arguments["backend"])
    amp = Amp.from_config(arguments)
    try:
        return amp.explain().to_dict()
    finally:
        amp.close()


def _with_layers(target: str, assignments: list[str] | None, backend: str | None, policy: str | None) -> dict[str, Any]:
    from ..workloads.training.loop import make_run

    given = read_assignments(assignments or ())
    settings = read_settings(read_source(target), amp={"backend": backend, "policy": policy}, given=given)
    if settings.amp["backend"] is not None:
        choices.one_backend(settings.amp["backend"])
    run = make_run(settings)
    try:
        size = run.workload.settings.get("batch_size")
        return {**run.amp.explain().to_dict(), **layer_rows(run.amp, [run.model], size)}
    finally:
        run.amp.close()


def show_plan(found: dict[str, Any]) -> None:
    """Print a plan as tables."""
    out = console()
    columns = ("setting", "value", "native", "effect", "note")
    rows = [[row[column] for column in columns] for row in found["rows"]]
    out.print(table(f"Plan for {found['backend']}", columns, rows, verdicts=("effect",)))
    if "layers" in found:
        _show_layers(out, found)
    for line in found["warnings"]:
        say(out, f"warning: {line}", "yellow")


def _show_layers(out: Console, found: dict[str, Any]) -> None:
    if "shapes_reason" in found:
        say(out, f"No advice on shapes: {found['shapes_reason']}")
        return
    rows = [
        (one["layer"], one["kind"], ", ".join(f"{name} {size}" for name, size in one["sizes"].items()), one["dtype"])
        for one in found["layers"]
    ]
    out.print(table("Layers that multiply matrices", ("layer", "kind", "sizes", "computes in"), rows))
    if not found["shapes"]:
        out.print("Shapes: nothing to advise.")
        return
    columns = ("layer", "dimension", "size", "padded", "why")
    rows = [tuple(one[column] for column in columns) for one in found["shapes"]]
    out.print(table("Sizes that keep Tensor Cores idle", columns, rows, right=("size", "padded")))
