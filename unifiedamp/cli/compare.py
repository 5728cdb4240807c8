"""``unifiedamp compare``: a recipe under several backends, policies, compile modes and batch sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ..output.files import check_folder, remove_folders, write_whole
from ..output.terminal import plain
from ..workloads.compare.advice import advise
from ..workloads.compare.page import drawings, html
from ..workloads.compare.rows import BASELINE, Row, tasks
from ..workloads.compare.run import TIMEOUT, Options
from ..workloads.compare.run import compare as run_all
from ..workloads.compare.write import COLUMNS, NUMBERS, cells, dump, markdown, notes, to_json
from ..workloads.recipes import find_config, recipe_module
from . import choices
from .about import about
from .errors import NOT_ALL_WELL
from .parity import show_parity
from .show import complain, console, print_json, say, table

Words = list[str] | None


def compare(
    recipe: Annotated[str, typer.Argument(help="A recipe's .toml or .json file, or the name of one that is here.")],
    backends: Annotated[Words, typer.Option(help="torch,tensorflow,mxnet [all that are installed]")] = None,
    policies: Annotated[Words, typer.Option(help="float32,mixed_bfloat16,... [float32, and the recipe's own]")] = None,
    compile: Annotated[Words, typer.Option(help="off,default,max of amp.compile [the recipe's own]")] = None,
    batch_sizes: Annotated[Words, typer.Option(help="32,64,... [the recipe's own]")] = None,
    find_batch_size: Annotated[
        bool, typer.Option("--find-batch-size", help="Run the largest batch size that fits in memory too.")
    ] = False,
    max_batch_size: Annotated[
        int | None, typer.Option(min=1, help="The largest that --find-batch-size tries [the number of samples].")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of each training [the recipe's own].")] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Train on the first N samples only [all]; the test set stays whole.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in which each run is timed.")] = 5,
    parity: Annotated[
        bool, typer.Option("--parity", help="Instead: the first step, layer and dtype at which backends part.")
    ] = False,
    parity_steps: Annotated[int, typer.Option(min=1, help="Steps that --parity compares.")] = 5,
    profile: Annotated[
        bool, typer.Option("--profile", help="On a GPU: the share of matmul and conv time in Tensor Cores.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds without progress after which a run counts as hung.")
    ] = TIMEOUT,
    out: Annotated[Path | None, typer.Option(help="Where the files go [runs/compare-NAME].")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Train a recipe under each combination; compare speed, memory and quality, and say what to use.

    Example: unifiedamp compare digits_conv --backends torch,tensorflow --policies float32,mixed_bfloat16 --epochs 2

    Each run has a separate process: a crash or a lack of memory costs one row. Trainings run one after the
    other; then the runs of one backend, compile mode and batch size are timed interleaved. compare.md and compare.json
    are written after every row, compare.html after every such group and on Ctrl-C.

    Exit code 0: all rows are finished (those that cannot run here say so); 1: a row failed, none finished, or with
    --parity, backends part; 2: wrong arguments; 130: Ctrl-C.
    """
    config = find_config(recipe)
    train = {key: value for key, value in (("epochs", epochs), ("samples", samples)) if value is not None}
    settings = recipe_module("settings").read_settings(config, train=train)
    names = choices.backends(backends)
    chosen = choices.policies(policies) or _default_policies(settings)
    modes = choices.compile_modes(compile) or [_own_mode(settings)]
    sizes = choices.sizes(batch_sizes) or ([] if find_batch_size else [settings.train.batch_size])
    folder = check_folder(out or Path("runs") / f"compare-{config.stem}", "--out")
    folder.mkdir(parents=True, exist_ok=True)
    remove_folders()
    options = Options(config, train, rounds, max_batch_size, profile, timeout)
    if parity:
        size = (sizes or [settings.train.batch_size])[0]
        show_parity(names, chosen, modes[0], size, parity_steps, options, folder, json)
        return
    groups = tasks(names, chosen, modes, [*sizes, *([0] if find_batch_size else [])])
    _compare(groups, options, folder, about(f"{settings.train.model} on {settings.train.data}", config), json)


def _compare(groups: Any, options: Options, folder: Path, head: dict[str, str], json: bool) -> None:
    rows: list[Row] = []

    def save(found: list[Row], page: bool, final: bool = False) -> None:
        rows[:] = found
        advice = advise(rows) if final else []
        write_whole(folder / "compare.json", dump(to_json(rows, head, advice)))
        write_whole(folder / "compare.md", markdown(rows, head, advice))
        if page:  # drawing takes a second, so not after every row
            write_whole(folder / "compare.html", html(rows, head, advice, final=final))

    try:
        with Bars(console(stderr=True), sum(map(len, groups))) as bars:
            run_all(groups, options, bars, save)
    except KeyboardInterrupt:
        save(rows.copy(), page=True)
        raise
    save(rows.copy(), page=True, final=True)
    if why := drawings(rows)[1]:
        complain(f"warning: compare.html has no plots: {why}")
    if json:
        print_json(to_json(rows, head, advise(rows)))
    else:
        _show(rows, head, folder)
    if not any(row.state == "done" for row in rows) or any(row.state == "failed" for row in rows):
        raise typer.Exit(NOT_ALL_WELL)


def _default_policies(settings: Any) -> list[str]:
    own = settings.amp["policy"]
    return list(dict.fromkeys([BASELINE, str(own) if own is not None else "mixed_bfloat16"]))


def _own_mode(settings: Any) -> str:
    return str(settings.amp["compile"]) if settings.train.compile else "off"


def _show(rows: list[Row], head: dict[str, str], folder: Path) -> None:
    out = console()
    out.print(table(head["title"], COLUMNS, map(cells, rows), right=NUMBERS, verdicts=("state",), heads=4))
    for line in notes(rows):
        say(out, line, "dim")
    for line in advise(rows):
        say(out, line, "bold")
    say(out, f"compare.md, compare.json and compare.html: {folder}", "dim")


class Bars:
    """Progress on a terminal: a bar for all rows, and one for the training that runs."""

    def __init__(self, out: Console, rows: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=out, transient=True, disable=not out.is_terminal)
        self._all = self._progress.add_task("rows", total=rows)
        self._one = self._progress.add_task("", total=None)

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def begin(self, what: str) -> None:
        """Something begins."""
        self._progress.reset(self._one, description=plain(what), total=None)

    def at(self, done: int, total: int) -> None:
        """It has come so far."""
        self._progress.update(self._one, completed=done, total=total)

    def finished(self, row: Row) -> None:
        """A row is finished, well or not."""
        self._progress.advance(self._all)
        speed = f"{row.samples_per_second:.0f} samples/s" if row.samples_per_second else row.reason
        say(self._progress.console, f"{row.label}: {row.state}, {speed}")
