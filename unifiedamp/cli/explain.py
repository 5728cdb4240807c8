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
from ..workloads.recipes import find_config, recipe_module
from ..workloads.scripts.compare import ScriptOptions
from ..workloads.scripts.single import explain_script
from . import choices
from .script_command import named, only_one, refuse, script_of
from .show import console, print_json, say, table


def explain(
    context: typer.Context,
    config: Annotated[
        str | None, typer.Argument(help="A .toml or .json file, or the name of one of the recipe's.")
    ] = None,
    backend: Annotated[str | None, typer.Option(help="torch, tensorflow, mxnet, or a plugin's name.")] = None,
    policy: Annotated[str | None, typer.Option(help="float32, mixed_bfloat16, mixed_float16, O1, ...")] = None,
    recipe: Annotated[
        bool, typer.Option("--recipe", help="Prepare the recipe's model too: its rows, and advice on its shapes.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="A script: seconds without a sign of life after which it counts as hung.")
    ] = TIMEOUT,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show the native calls and values that a configuration becomes, what is emulated, and what has no effect.

    Example: unifiedamp explain digits_conv --backend torch --recipe

    With "-- python train.py --my-flags" instead of a configuration, your own script is run as it is up to its first
    step; the plan is that of its session, with the layers of its models.

    Exit code 0: the configuration can run here; 2: it cannot, or cannot be read (the reason is printed).
    """
    script = script_of(context)
    if script is not None:
        only_one(config, script)
        refuse(context, ("backend", "recipe"), "belongs to a configuration; your script names its own backend")
        found = explain_script(ScriptOptions(script, timeout=timeout), policy)
        print_json(found) if json else show_plan(found)
        return
    config = named(config, context)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = _with_recipe(find_config(config), backend, policy) if recipe else _plan(config, backend, policy)
    messages = [str(one.message) for one in caught if issubclass(one.category, AmpWarning)]
    found["warnings"] = list(dict.fromkeys(messages))
    print_json(found) if json else show_plan(found)


def _plan(config: str, backend: str | None, policy: str | None) -> dict[str, Any]:
    arguments = read_arguments(find_config(config), {"backend": backend, "policy": policy})
    choices.one_backend(arguments["backend"])
    amp = Amp.from_config(arguments)
    try:
        return amp.explain().to_dict()
    finally:
        amp.close()


def _with_recipe(config: Path, backend: str | None, policy: str | None) -> dict[str, Any]:
    settings = recipe_module("settings").read_settings(config, amp={"backend": backend, "policy": policy})
    choices.one_backend(settings.amp["backend"])
    run, _ = recipe_module("recipe").make_run(settings)
    try:
        return {**run.amp.explain().to_dict(), **layer_rows(run.amp, [run.model], settings.train.batch_size)}
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
