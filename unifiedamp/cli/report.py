"""``unifiedamp report``: what a recording says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ConfigError
from ..output.files import check_file, check_folder, write_whole
from ..recording import page as pages
from ..recording.reading import Recording, read_recording
from .show import complain, console, print_json, say

EPILOG = (
    "Example: unifiedamp train --config digits_conv --record run.jsonl && unifiedamp report run.jsonl --html run.html"
)


def report(
    file: Annotated[Path, typer.Argument(help="A recording: what amp.record or train --record wrote.")],
    html: Annotated[Path | None, typer.Option(help="Write a page with plots here (one file).")] = None,
    png: Annotated[Path | None, typer.Option(help="Write the plots into this folder (needs matplotlib).")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON instead of sentences.")] = False,
) -> None:
    """Explain what precision did to each layer's numbers, and what to change.

    Plots that cannot be drawn are a warning. Exit code 0: the report is written, whatever it says; 2: the file is no
    recording, or cannot be read or written.
    """
    if html is not None:
        check_file(html, "--html")
        _check_other(html, file)
    if png is not None:
        check_folder(png, "--png")
    recording = read_recording(file)
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
