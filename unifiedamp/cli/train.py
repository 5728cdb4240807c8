"""``unifiedamp train``: train a workload."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..backend.launch import read_launch
from ..output.files import check_file, check_folder
from ..workloads.configuration import read_settings, read_source
from ..workloads.definition.settings import read_assignments
from . import choices
from .named import Assignments, Config, Epochs, Steps, Target
from .show import complain, console, print_json, say
from .streams import is_quiet

if TYPE_CHECKING:
    from ..workloads.training.job import Job
    from ..workloads.training.result import Result

RestartScale = Annotated[
    bool, typer.Option("--restart-scale", help="Resume without loss scaling under a policy that needs it.")
]
Launcher = Annotated[
    str | None, typer.Option(help="ray: train in several processes, which Ray Train starts and places.")
]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes that --launcher starts.")]
Restarts = Annotated[
    int | None, typer.Option(min=0, help="How often --launcher starts them anew after one has failed.")
]


def train(
    workload: Target,
    config: Config = None,
    assignments: Assignments = None,
    backend: Annotated[str | None, typer.Option(help="torch, tensorflow, mxnet, or a plugin's name.")] = None,
    policy: Annotated[str | None, typer.Option(help="float32, mixed_bfloat16, mixed_float16, O1, ...")] = None,
    compile: Annotated[str | None, typer.Option(help="off, default or max of amp.compile.")] = None,
    epochs: Epochs = None,
    steps: Steps = None,
    out: Annotated[Path | None, typer.Option(help="Where checkpoint, log and picture go.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint.")] = False,
    restart_scale: RestartScale = False,
    record: Annotated[Path | None, typer.Option(help="Record layers' numbers here, for unifiedamp report.")] = None,
    record_every: Annotated[int, typer.Option(min=1, help="Steps from one recorded step to the next.")] = 100,
    tensorboard: Annotated[Path | None, typer.Option(help="Record for TensorBoard too, into this folder.")] = None,
    launcher: Launcher = None,
    workers: Workers = None,
    max_restarts: Restarts = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the run as JSON; its progress goes to standard error.")
    ] = False,
) -> None:
    """Train a workload; options override the configuration file.

    Example: unifiedamp train my_model.py --policy mixed_bfloat16 --epochs 3 --set learning_rate=0.1

    Ctrl-C and SIGTERM save a checkpoint first; --resume goes on from it.

    Several processes: torchrun --nproc-per-node 2 -m unifiedamp train my_model.py, or --launcher ray --workers 2.

    Exit code 0: trained; 2: wrong arguments, or a workload that cannot be trained; 130: Ctrl-C; 143: SIGTERM.
    """
    read_launch(os.environ)  # refuses what a framework's import would crash on
    choices.launcher(launcher, workers, max_restarts)
    given = read_assignments(assignments or ())
    modes = choices.compile_modes([compile] if compile else None)
    chosen = read_settings(
        read_source(workload, config),
        out,
        amp={"backend": backend, "policy": policy, **({"compile": modes[0]} if modes else {})},
        train={"epochs": epochs, "steps": steps, "compile": modes[0] != "off" if modes else None},
        given=given,
    )
    if chosen.amp["backend"] is not None:
        choices.one_backend(chosen.amp["backend"])
    _check_outputs(chosen.out, record, tensorboard)
    from ..workloads.training.job import Job

    job = Job(chosen, resume, restart_scale, record, tensorboard, record_every)
    if launcher:
        from ..workloads.training.on_ray import train_on_ray

        _show(train_on_ray(job, workers or 1, max_restarts or 0, is_quiet()), json)
    else:
        _show(_train(job, json), json)


def _check_outputs(out: Path, record: Path | None, tensorboard: Path | None) -> None:
    check_folder(out, "--out")
    if record:
        check_folder(record.parent, "--record")
        check_file(record, "--record", parents=True)
    if tensorboard:
        check_folder(tensorboard, "--tensorboard")


def _train(job: Job, json: bool) -> Result:
    from ..workloads.training.report import Report
    from ..workloads.training.result import run_result

    display = Report(console(stderr=True) if json or is_quiet() else None)
    run = job.train(display)
    return run_result(run, display.undrawn)


def _show(result: Result, json: bool) -> None:
    if json:
        print_json(result.run)
    elif is_quiet():
        say(console(), result.outcome)
        if result.undrawn:
            complain(f"warning: no picture of loss and scale: {result.undrawn}")
