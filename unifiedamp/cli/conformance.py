"""``unifiedamp conformance``: hold a backend to the suite."""

from __future__ import annotations

import importlib.util
from json import loads as parse
from pathlib import Path
from typing import Annotated

import typer

from ..config import plugins
from ..errors import BackendUnavailableError, ConfigError
from ..output.files import check_file, write_whole
from .show import print_json
from .suite_run import NO_TESTS, run_suite


def conformance(
    backend: Annotated[str, typer.Argument(help="A registered backend's name, or 'all' that are installed.")],
    report: Annotated[
        Path | None, typer.Option(help="Write the report to this file, as JSON.", show_default="not written")
    ] = None,
    trajectories: Annotated[int, typer.Option(min=1, help="Random loss-scale trajectories per backend.")] = 1000,
    soak: Annotated[int, typer.Option(min=0, help="Steps of the soak test; 0 leaves it out.")] = 0,
    only: Annotated[
        str | None, typer.Option("-k", help="Only tests whose names match (pytest's -k).", show_default="all")
    ] = None,
    mutants: Annotated[
        bool, typer.Option("--mutants", help="Break the backend in many small ways; each must make a test fail.")
    ] = False,
    form: Annotated[
        list[str] | None, typer.Option(help="With --mutants: a form to run; again for more.", show_default="eager")
    ] = None,
    fault: Annotated[
        list[str] | None, typer.Option(help="With --mutants: one fault; again for more.", show_default="all")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON instead of pytest's lines.")] = False,
) -> None:
    """Prove that a backend means what every backend must mean.

    Exit code 0: every declared capability passes; 1: a test failed (with --mutants: none did, under some fault); 2: the
    backend or the kit is not there.
    """
    if not mutants and (form or fault):
        raise ConfigError("--form and --fault go with --mutants")
    if mutants and (backend == "all" or only is not None):
        raise ConfigError("--mutants takes the name of one backend, and no -k: --fault NAME runs one fault")
    if backend != "all":
        plugins.load_backend(backend)
    if importlib.util.find_spec("pytest") is None or importlib.util.find_spec("hypothesis") is None:
        raise BackendUnavailableError("the conformance kit needs pytest and hypothesis: pip install pytest hypothesis")
    if report is not None:
        check_file(report, "--report")
    if mutants:
        from .mutants import run

        raise typer.Exit(run(backend, form or ["eager"], fault or [], report, json))
    arguments = ["--amp-trajectories", str(trajectories), "--amp-soak", str(soak), *(["-k", only] if only else [])]
    code, found = run_suite(backend, arguments)
    if code == NO_TESTS:
        raise ConfigError(f"no test is selected{f' by -k {only}' if only else ''}")
    if report is not None:
        write_whole(report, found)
    if json:
        print_json(parse(found))
    raise typer.Exit(code)
