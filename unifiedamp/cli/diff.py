"""``unifiedamp diff``: where two recorded runs diverge."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..recording.difference import difference
from ..recording.divergence import Difference, Divergence
from ..recording.reading import read_recording
from .errors import NOT_ALL_WELL
from .show import console, print_json, say, table

CAUSES = {
    "initial weights": "the weights differed before the step: another seed, initialization or checkpoint",
    "data": "the input differed: other data, another order, or another random generator",
    "forward": "all that was computed before was alike, and this was not",
    "backward": "the forward pass was alike, and this gradient was the first of the backward pass that was not",
    "reduction": "every rank's own gradients were alike, and their sum was not",
    "update": "the gradients were alike, and what clipping or the optimizer made of them was not",
    "between recorded steps": "it happened in a step that was not recorded, or the loop wrote to the weights",
}


def diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="A recording made with amp.record(..., compare=True).")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another, of the same model.")],
    ulp: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Distance from which tensors differ, in ULP of the lower-precision dtype.",
            show_default="4, and 64 for float32",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of sentences.")] = False,
) -> None:  # fmt: skip
    """Say what two recorded runs differ in: settings, then the first step, layer and tensor that diverge, and why.

    Example: unifiedamp diff eager.jsonl compiled.jsonl

    Exit code 0: they do not diverge; 1: they do; 2: a file is no such recording, or they are of different models.
    The runs may be of two frameworks, forms of a step, numbers of ranks or policies.
    """
    found = difference(read_recording(first), read_recording(second), ulp)
    print_json({"schema": "unifiedamp-diff", "version": 1, **found.to_dict()}) if json else _show(found)
    if found.first is not None:
        raise typer.Exit(NOT_ALL_WELL)


def _show(found: Difference) -> None:
    out = console()
    if found.settings:
        out.print(table("Environment and settings", ("setting", "A", "B"), list(found.settings)))
    for line in found.compared:
        say(out, f"Compared: {line}.")
    if found.first is None:
        say(out, f"The runs are alike in {found.steps} recorded steps, up to rounding.")
        return
    say(out, f"The runs diverge in step {found.first.step}, {found.first.part}: {_tensor(found.first)}.")
    say(out, f"Cause: {CAUSES[found.first.part]}.")
    if found.first.note:
        say(out, f"Note: {found.first.note}.")


def _tensor(first: Divergence) -> Any:
    kind = f" ({first.kind})" if first.kind else ""
    other = f" (`{first.other}` in B)" if first.other else ""
    cosine = "" if first.cosine is None else f", cosine {first.cosine:.6g}"
    return (
        f"`{first.name or 'the model'}`{kind}{other}, relative distance {first.distance:.3g} "
        f"({first.ulp:.3g} ULP of {first.dtype}; the limit is {first.limit:.2g}){cosine}"
    )
