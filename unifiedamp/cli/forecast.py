"""``unifiedamp forecast -- python train.py``: what other number formats would do to a script's layers."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ConfigError
from ..output.files import check_file, remove_folders, write_whole
from ..visible import plain
from ..workloads.compare.run import TIMEOUT
from ..workloads.scripts.compare import ScriptOptions
from ..workloads.scripts.single import Recorded, count_script
from . import choices
from .errors import NOT_ALL_WELL
from .script_command import EXAMPLE, BackendOption, ScriptTimeout, backend_options, script_of
from .show import complain, console, print_json, say, table
from .time_left import TimeLeft

if TYPE_CHECKING:  # imports numpy
    from ..forecast.forecast import Forecast

STEPS, MAX_ERROR = 50, 0.1


def forecast(
    context: typer.Context,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps that are counted.")] = STEPS,
    max_error: Annotated[
        float, typer.Option(help="The mean squared relative error of a tensor that is accepted, between 0 and 1.")
    ] = MAX_ERROR,
    formats: Annotated[
        list[str] | None,
        typer.Option(help="Formats to forecast: bfloat16,float16,float8, and e.g. float8_rowwise,mxfp4,nvfp4."),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with pictures here (one file).")] = None,
    policy: Annotated[str | None, typer.Option(help="In the place of the script's own policy.")] = None,
    backend_option: BackendOption = None,
    timeout: ScriptTimeout = TIMEOUT,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Run a script in float32 or bfloat16, and forecast what each number format would lose in each layer.

    Example: unifiedamp forecast --html forecast.html -- python train.py --my-flags

    The script ends after --steps steps. Its session (ua.Amp) counts the values of weights, activations and gradients of
    each matrix product. The last line is the cheapest policy that loses no more than --max-error, as text that
    ua.Policy.parse reads.

    Exit code 0: the forecast is printed, of fewer steps too where the script has no more; 1: the script failed, and the
    forecast is of the steps until then; 2: wrong arguments, a session in float16 or float8, or no step was counted.
    """
    from ..forecast.choice import ALL_FORMATS, FORMATS
    from ..forecast.counted import read_counts
    from ..forecast.forecast import Forecast
    from ..forecast.start import check_settings

    script = script_of(context)
    if script is None:
        raise ConfigError(f"name the script to forecast: unifiedamp forecast -- {EXAMPLE}")
    wanted = choices.one_of(choices.split(formats), ALL_FORMATS, "--formats") or list(FORMATS)
    check_settings(steps, max_error, wanted, "forecast: ")
    if html is not None:
        check_file(html, "--html")
    named = next(iter(choices.policies([policy])), None) if policy is not None else None
    remove_folders()
    options = ScriptOptions(script, steps=steps, timeout=timeout, backend_options=backend_options(backend_option))
    with console(stderr=True).status(plain("starting the script")) as status:
        left = TimeLeft(steps)
        counted = count_script(options, named, lambda at: status.update(f"step {at} of {steps}{left(at)}"), wanted)
    if counted.interrupted is not None:
        raise counted.interrupted
    if not counted.content:
        _check(0, 0, counted.reason)
    about, totals = read_counts(json_text.loads(counted.content))
    _check(about["steps"], len(totals), counted.reason)
    _show(Forecast.of(about, totals, max_error, wanted), counted, html, json)
    if counted.failed:
        raise typer.Exit(NOT_ALL_WELL)


def _check(steps: int, layers: int, reason: str) -> None:
    if not steps:
        raise ConfigError(f"no step was counted: {reason or 'the script ended first'}")
    if not layers:
        raise ConfigError(
            f"no matrix product ran in {steps} steps: of the models given to amp.prepare, linear and convolutional "
            "layers are counted"
        )


def _show(found: Forecast, counted: Recorded, html: Path | None, json: bool) -> None:
    from ..forecast.page import page

    if html is not None:
        write_whole(html, page(found))
    if counted.reason:
        complain(f"after {found.about['steps']} steps: {counted.reason}")
    written = [str(html)] if html is not None else []
    if json:
        said = {"said": counted.session["said"], "reason": counted.reason, "written": written}
        print_json({"schema": "unifiedamp-forecast", "version": 1, **found.to_dict(), **said})
        return
    out = console()
    for note in counted.session["said"]:
        say(out, note, "dim")
    out.print(table(found.title(), found.heads(), found.rows()))
    for path in written:
        say(out, f"written: {path}")
    for line in found.summary():
        say(out, line)
