"""``unifiedamp report``: what a recording says, or a short training of a workload that is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ConfigError
from ..output.files import check_file, check_folder, remove_folders, temporary_folder, write_whole
from ..recording import page as pages
from ..recording.reading import Recording, read_recording
from ..workloads.configuration import read_settings, read_source
from ..workloads.definition.reference import is_reference
from ..workloads.definition.settings import read_assignments
from . import choices
from .named import Assignments, Config
from .show import complain, console, print_json, say

EPILOG = (
    "Example: unifiedamp report my_model.py --policy mixed_float16 --steps 200. "
    "Example: unifiedamp train my_model.py --record run.jsonl && unifiedamp report run.jsonl --html run.html"
)
STEPS, EVERY = 100, 10


def report(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="A recording (what amp.record or train --record wrote), or a workload: FILE.py, "
            "FILE.py:NAME, or a .toml or .json file that names it."
        ),
    ],
    config: Config = None,
    assignments: Assignments = None,
    backend: Annotated[str | None, typer.Option(help="Of a workload: torch, tensorflow, mxnet, ...")] = None,
    policy: Annotated[str | None, typer.Option(help="Of a workload: float32, mixed_float16, ...")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Of a workload: optimizer steps to train.")] = STEPS,
    every: Annotated[int, typer.Option(min=1, help="Of a workload: steps from one recorded step to the next.")] = EVERY,
    html: Annotated[Path | None, typer.Option(help="Write a page with pictures here (one file).")] = None,
    png: Annotated[Path | None, typer.Option(help="Write the pictures into this folder.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON instead of sentences.")] = False,
) -> None:  # fmt: skip
    """Explain what precision did to each layer's numbers, and what to change.

    A workload is trained for some steps with the recorder on; recording and page go to runs/report-NAME.

    Plots that cannot be drawn are a warning.

    Exit code 0: the report is written, whatever it says; 2: the file is no recording or workload, or cannot be read or
    written.
    """
    if html is not None:
        check_file(html, "--html")
        _check_other(html, Path(file))
    if png is not None:
        check_folder(png, "--png")
    if is_reference(file) or Path(file).suffix.lower() == ".toml" or _names_workload(Path(file)):
        source = read_source(file, config)
        folder = check_folder(Path("runs") / f"report-{source.file.stem}", "folder")
        train = {"steps": steps, "epochs": 2**31 - 1}
        amp = {"backend": backend, "policy": policy}
        settings = read_settings(source, folder, amp=amp, train=train, given=read_assignments(assignments or ()))
        if settings.amp["backend"] is not None:
            choices.one_backend(settings.amp["backend"])
        recording = _recorded(settings, every)
        html = html or folder / "report.html"
    elif config or assignments or backend or policy:
        raise ConfigError(f"{file} is read as a recording: --config, --set, --backend and --policy are of workloads")
    else:
        recording = read_recording(Path(file))
    _write(recording, html, png, json)


def _names_workload(file: Path) -> bool:
    return file.suffix.lower() == ".json" and file.is_file() and b'"workload"' in file.read_bytes()[:4096]


def _recorded(settings: Any, every: int) -> Recording:
    """Train a workload with the recorder on; its checkpoints are not kept."""
    from dataclasses import replace

    from ..workloads.training.loop import train
    from ..workloads.training.report import Report

    remove_folders()
    target = settings.out / "run.jsonl"
    settings.out.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    with temporary_folder() as folder:
        display = Report(console(stderr=True), files=False)
        train(replace(settings, out=Path(folder)), display, record=[target], record_every=every)
    return read_recording(target)


def _write(recording: Recording, html: Path | None, png: Path | None, json: bool) -> None:
    written: list[Path] = []
    undrawn: dict[str, str] = {}
    if png is not None:
        written, undrawn[f"--png {png}"] = _save_pictures(recording, png)
    if html is not None:
        plots = pages.drawings(recording)
        write_whole(html, pages.page(recording, plots))
        written.append(html)
        undrawn |= {f"--html {html}": plots[1]}
    report = pages.to_dict(recording)
    warnings = [f"{option} has no plots: {why}" for option, why in undrawn.items() if why]
    if json:
        print_json({**report, "written": [str(path) for path in written], "warnings": warnings})
    else:
        _show(recording, report, written)
    for line in warnings:
        complain(f"warning: {line}")


def _show(recording: Recording, report: dict[str, Any], written: list[Path]) -> None:
    out = console()
    say(out, f"{pages.title(recording)}: {pages.about(recording)}")
    for found in report["findings"]:
        say(out, f"- {found['text']}")
    if not report["findings"]:
        say(out, "Nothing to change: no overflow, no gradient lost to underflow, no epsilon lost.")
    for path in written:
        say(out, f"written: {path}")


def _save_pictures(recording: Recording, folder: Path) -> tuple[list[Path], str]:
    try:
        return pages.save_pictures(recording, folder)
    except OSError as error:
        raise ConfigError(f"--png {folder}: {error.strerror}") from error


def _check_other(html: Path, file: Path) -> None:
    if html.exists() and file.exists() and html.samefile(file):
        raise ConfigError(f"--html {html} is the recording itself; give another file")
