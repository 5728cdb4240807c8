"""``unifiedamp train``: run the example recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..output.files import check_file, check_folder
from ..recording import TensorBoard
from ..workloads.recipes import find_config, recipe_module
from . import choices


def train(
    config: Annotated[str, typer.Option(help="A .toml or .json file, or the name of one that comes with the recipe.")],
    backend: Annotated[str | None, typer.Option(help="torch, tensorflow, mxnet, or a plugin's name.")] = None,
    policy: Annotated[str | None, typer.Option(help="float32, mixed_bfloat16, mixed_float16, O1, ...")] = None,
    data: Annotated[str | None, typer.Option(help="digits or fashion-mnist.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="How often to see the whole data.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where checkpoint, log and picture go [runs/NAME].")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint, of whichever backend.")] = False,
    restart_scale: Annotated[
        bool, typer.Option("--restart-scale", help="Resume without loss scaling under a policy that needs it.")
    ] = False,
    record: Annotated[Path | None, typer.Option(help="Record layers' numbers here, for unifiedamp report.")] = None,
    record_every: Annotated[int, typer.Option(min=1, help="Steps from one recorded step to the next.")] = 100,
    tensorboard: Annotated[Path | None, typer.Option(help="Record for TensorBoard too, into this folder.")] = None,
) -> None:
    """Train the example recipe; options override the configuration file."""
    recipe, report, run, settings = (recipe_module(name) for name in ("recipe", "report", "run", "settings"))
    chosen = settings.read_settings(
        find_config(config),
        out,
        amp={"backend": backend, "policy": policy},
        train={"data": data, "epochs": epochs},
    )
    choices.one_backend(chosen.amp["backend"])
    if resume:
        run.check_resumable(chosen)
    check_folder(chosen.out, "--out")
    if record:
        check_folder(record.parent, "--record")
        check_file(record, "--record", parents=True)
    if tensorboard:
        check_folder(tensorboard, "--tensorboard")
    targets = [*([record] if record else []), *([TensorBoard(tensorboard)] if tensorboard else [])]
    recipe.train(
        chosen, report.Report(), resume=resume, restart_scale=restart_scale, record=targets, record_every=record_every
    )
