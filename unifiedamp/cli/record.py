"""``unifiedamp record -- python train.py``: what each layer of a script's models does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import ConfigError
from ..output.files import check_file, remove_folders, write_whole
from ..recording import page as pages
from ..recording.reading import read_recording
from ..visible import plain
from ..workloads.compare.run import TIMEOUT
from ..workloads.scripts.compare import ScriptOptions
from ..workloads.scripts.schedule import STEPS
from ..workloads.scripts.single import Recorded, record_script
from . import choices
from .errors import NOT_ALL_WELL
from .script_command import EXAMPLE, BackendOption, ScriptTimeout, backend_options, script_of
from .show import complain, console, print_json, say
from .time_left import TimeLeft


def record(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="The recording to write, a file of JSON lines.")] = Path("recording.jsonl"),
    html: Annotated[Path | None, typer.Option(help="Write the page of 'unifiedamp report' too.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of the run.")] = STEPS,
    every: Annotated[int, typer.Option(min=1, help="Steps from one recorded step to the next.")] = 10,
    policy: Annotated[str | None, typer.Option(help="In the place of the script's own policy.")] = None,
    backend_option: BackendOption = None,
    timeout: ScriptTimeout = TIMEOUT,
    write: Annotated[bool, typer.Option("--write", help="Overwrite the recording if it is there.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of sentences.")] = False,
) -> None:
    """Run a script as it is, and record what each layer's numbers do; see the result with unifiedamp report.

    Example: unifiedamp record --out run.jsonl --html run.html -- python train.py --my-flags

    The script ends after --steps steps. It needs no change: the recording is made by its session (ua.Amp).

    Exit code 0: the recording is written, of fewer steps too where the script has no more; 1: the script failed, and
    what it recorded until then is written; 2: wrong arguments, or it ended before its first step.
    """
    script = script_of(context)
    if script is None:
        raise ConfigError(f"name the script to record: unifiedamp record -- {EXAMPLE}")
    _check(out, html, write)
    named = next(iter(choices.policies([policy])), None) if policy is not None else None
    remove_folders()
    options = ScriptOptions(script, steps=steps, timeout=timeout, backend_options=backend_options(backend_option))
    with console(stderr=True).status(plain("starting the script")) as status:
        left = TimeLeft(steps)
        found = record_script(options, named, every, lambda at: status.update(f"step {at} of {steps}{left(at)}"))
    if not found.content:
        raise ConfigError(f"nothing was recorded: {found.reason or 'the script ended first'}")
    _write(found, out, html, json)
    if found.interrupted is not None:
        raise found.interrupted
    if found.failed:
        raise typer.Exit(NOT_ALL_WELL)


def _check(out: Path, html: Path | None, write: bool) -> None:
    if out.is_file() and not write:
        raise ConfigError(f"{out} is there already: pass --write to overwrite it, or another --out")
    check_file(out, "--out")
    if html is not None:
        check_file(html, "--html")
        if html.absolute() == out.absolute():
            raise ConfigError(f"--html {html} is the recording itself; give another file")


def _write(found: Recorded, out: Path, html: Path | None, json: bool) -> None:
    write_whole(out, found.content)
    written = [out]
    if html is not None:
        write_whole(html, pages.page(read_recording(out)))
        written.append(html)
    if found.reason:
        complain(f"after {found.steps} steps: {found.reason}")
    if json:
        about = {key: found.session[key] for key in ("backend", "policy", "own_policy", "device", "said")}
        print_json({"schema": "unifiedamp-record", "version": 1, **about, "steps": found.steps,
                    "reason": found.reason, "written": [str(path) for path in written]})  # fmt: skip
        return
    for note in found.session["said"]:
        say(console(), note, "dim")
    for path in written:
        say(console(), f"written: {path}")
    if html is None:
        say(console(), f"see it: unifiedamp report {out} --html {out.with_suffix('.html')}")
