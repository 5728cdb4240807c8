"""``unifiedamp explain``: what a configuration becomes, before training."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..config.arguments import read_arguments
from ..errors import AmpWarning
from ..explain.shape_advice import advise
from ..policy.layer_globs import match_layers
from ..session import Amp
from ..workloads.recipes import find_config, recipe_module
from . import choices
from .show import console, print_json, say, table


def explain(
    config: Annotated[str, typer.Argument(help="A .toml or .json file, or the name of one of the recipe's.")],
    backend: Annotated[str | None, typer.Option(help="torch, tensorflow, mxnet, or a plugin's name.")] = None,
    policy: Annotated[str | None, typer.Option(help="float32, mixed_bfloat16, mixed_float16, O1, ...")] = None,
    recipe: Annotated[
        bool, typer.Option("--recipe", help="Prepare the recipe's model too: its rows, and advice on its shapes.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show the native calls and values that a configuration becomes, what is emulated, and what has no effect.

    Example: unifiedamp explain digits_conv --backend torch --recipe

    Exit code 0: the configuration can run here; 2: it cannot, or cannot be read (the reason is printed).
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = _with_recipe(find_config(config), backend, policy) if recipe else _plan(config, backend, policy)
    messages = [str(one.message) for one in caught if issubclass(one.category, AmpWarning)]
    found["warnings"] = list(dict.fromkeys(messages))
    print_json(found) if json else _show(found)


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
        return {**run.amp.explain().to_dict(), **_layers(run.amp, run.model, settings.train.batch_size)}
    finally:
        run.amp.close()


def _layers(amp: Amp, model: Any, batch_size: int) -> dict[str, Any]:
    """Return the layers that multiply matrices, the dtype each computes in, and the sizes that do not suit it."""
    support = amp.capabilities.feature("shape_advice")
    if not support:
        return {"layers": [], "shapes": [], "shapes_reason": support.reason}
    known = list(amp.backend.layer_shapes.matmul_shapes([model]))
    # A glob may name a layer that is none of these.
    globs = {g: d for g, d in amp.policy.layer_overrides.items() if any(fnmatchcase(one.layer, g) for one in known)}
    other = match_layers(globs, [one.layer for one in known])
    float8 = {row.setting.removeprefix("float8.") for row in amp.explain() if row.value == "float8"}
    dtypes = {
        one.layer: "float8" if one.layer in float8 else one.dtype or other.get(one.layer) or amp.policy.region_dtype
        for one in known
    }
    layers = [
        {"layer": one.layer, "kind": one.kind, "sizes": dict(one.dimensions), "dtype": dtypes[one.layer]}
        for one in known
    ]
    # Of the advice for each dtype, what is said of the layers that compute in it; the batch goes through all of them.
    dtypes["(batch)"] = amp.policy.compute_dtype
    advice = [
        asdict(one)
        for dtype in dict.fromkeys(dtypes.values())
        for one in advise(amp.backend, [model], dtype, batch_size)
        if dtypes[one.layer] == dtype
    ]
    order = list(dtypes)
    return {"layers": layers, "shapes": sorted(advice, key=lambda one: order.index(one["layer"]))}


def _show(found: dict[str, Any]) -> None:
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
