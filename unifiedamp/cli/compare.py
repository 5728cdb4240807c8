"""``unifiedamp compare``: a workload, or a script, under several backends, policies, compile modes and batch sizes."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..config.values import parse_setting
from ..errors import ConfigError
from ..loss_scale import parse_loss_scale
from ..output.files import check_folder, remove_folders, write_whole
from ..visible import plain
from ..workloads.compare.advice import advise
from ..workloads.compare.page import drawings, html
from ..workloads.compare.rows import BASELINE, Row, tasks
from ..workloads.compare.run import TIMEOUT, Options
from ..workloads.compare.run import compare as run_all
from ..workloads.compare.write import NAMES, dump, markdown, notes, table_of, to_json
from ..workloads.scripts.compare import ScriptOptions
from ..workloads.scripts.schedule import LEAST
from . import choices
from .about import about
from .errors import NOT_ALL_WELL
from .named import Assignments, Config, Epochs, Named, OptionalTarget, RunTimeout
from .script_command import backend_options, named, only_one, refuse, script_of
from .script_compare import OF_SCRIPTS, CompareOption, ScriptScale, Serial, run_script
from .show import complain, console, print_json, say, table

Words = list[str] | None
LEFT = TextColumn("left:")


def compare(
    context: typer.Context,
    workload: OptionalTarget = None,
    config: Config = None,
    assignments: Assignments = None,
    backends: Annotated[Words, typer.Option(help="torch,tensorflow,mxnet.")] = None,
    policies: Annotated[Words, typer.Option(help="float32,mixed_bfloat16,...")] = None,
    compile: Annotated[Words, typer.Option(help="off,default,max of amp.compile.")] = None,
    batch_sizes: Annotated[Words, typer.Option(help="32,64,...")] = None,
    find_batch_size: Annotated[
        bool, typer.Option("--find-batch-size", help="Run the largest batch size that fits in memory too.")
    ] = False,
    max_batch_size: Annotated[int | None, typer.Option(min=1, help="The largest that --find-batch-size tries.")] = None,
    epochs: Epochs = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimizer steps of each run.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in which each run is timed.")] = 5,
    profile: Annotated[
        bool, typer.Option("--profile", help="On a GPU: the share of matmul and conv time in Tensor Cores.")
    ] = False,
    serial: Serial = False,
    loss_scale: ScriptScale = None,
    backend_option: CompareOption = None,
    timeout: RunTimeout = TIMEOUT,
    out: Annotated[Path | None, typer.Option(help="Where the files go.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Train a workload under each combination; compare speed, memory and quality, and say what to use.

    Example: unifiedamp compare my_model.py --policies float32,mixed_bfloat16,mixed_float16

    With "-- python train.py --my-flags" instead of a workload, your own script is run as it is, once per policy and
    compile mode; its session (ua.Amp) takes the settings from here, and ends the script after --steps steps.

    Each run has a separate process: a crash or a lack of memory costs one row. Trainings run one after the
    other; then the runs of one backend, compile mode and batch size are timed interleaved. compare.md and compare.json
    are written after every row, compare.html after every such group and on Ctrl-C.

    Exit code 0: all rows are finished (those that cannot run here say so); 1: a row failed, or none finished; 2: wrong
    arguments; 130: Ctrl-C.
    """
    script = script_of(context)
    if script is not None:
        only_one(workload, script)
        scale = _checked_scale(steps, loss_scale)
        run = ScriptOptions(script, steps, rounds, timeout, serial, scale, backend_options(backend_option))
        run_script(context, run, policies, compile, out, functools.partial(_run_rows, json=json))
        return
    target = named(workload, context)
    refuse(context, OF_SCRIPTS, "belongs to a script: unifiedamp compare -- python train.py")
    what = Named(target, config, assignments, timeout, {"epochs": epochs, "steps": steps})
    chosen = choices.policies(policies) or _default_policies(what.settings.amp["policy"])
    modes = choices.compile_modes(compile) or [what.mode]
    folder = check_folder(out or Path("runs") / f"compare-{what.source.file.stem}", "--out")
    names = what.backends(backends)
    groups = tasks(names, chosen, modes, _batch_sizes(what, batch_sizes, find_batch_size))
    folder.mkdir(parents=True, exist_ok=True)
    remove_folders()
    options = Options(target, config, what.given, what.train, rounds, max_batch_size, profile, timeout)
    head = about(what.title, what.source.file)
    _run_rows(lambda bars, save: run_all(groups, options, bars, save), folder, head, sum(map(len, groups)), json)


def _checked_scale(steps: int | None, loss_scale: str | None) -> dict[str, Any] | None:
    """Return the loss scale for a script, None for the script's own; refuse too few steps."""
    if steps is not None and steps < LEAST:
        raise ConfigError(f"--steps {steps}: a script is measured over {LEAST} steps at least")
    return None if loss_scale is None else parse_loss_scale(parse_setting(loss_scale)).to_dict()


def _batch_sizes(what: Named, given: Words, find: bool) -> list[int | None]:
    """Return the batch sizes to run: None for that of the workload, 0 for the largest that fits."""
    sizes: list[int | None] = [*choices.sizes(given)]
    if not sizes and not find:
        return [what.batch_size()]
    what.check_batch_sizes("--batch-sizes" if sizes else "--find-batch-size")
    return [*sizes, *([0] if find else [])]


def _run_rows(run: Any, folder: Path, head: dict[str, str], count: int, json: bool) -> None:
    rows: list[Row] = []

    def save(found: list[Row], page: bool, final: bool = False) -> None:
        rows[:] = found
        advice = advise(rows) if final else []
        write_whole(folder / "compare.json", dump(to_json(rows, head, advice)))
        write_whole(folder / "compare.md", markdown(rows, head, advice))
        if page:  # drawing takes a second, so not after every row
            write_whole(folder / "compare.html", html(rows, head, advice, final=final))

    try:
        with Bars(console(stderr=True), count) as bars:
            run(bars, save)
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


def _default_policies(own: Any) -> list[str]:
    return list(dict.fromkeys([BASELINE, str(own) if own is not None else "mixed_bfloat16"]))


def _show(rows: list[Row], head: dict[str, str], folder: Path) -> None:
    out = console()
    shown = table_of(rows)
    heads = sum(name in NAMES for name in shown.columns)
    out.print(table(head["title"], shown.columns, shown.rows, right=shown.numbers, verdicts=("state",), heads=heads))
    for line in notes(rows):
        say(out, line, "dim")
    for line in advise(rows):
        say(out, line, "bold")
    say(out, f"compare.md, compare.json and compare.html: {folder}", "dim")


class Bars:
    """Progress on a terminal: a bar for all rows, and one for the training that runs."""

    def __init__(self, out: Console, rows: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), LEFT, TimeRemainingColumn())
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
        speed = f"{row.samples_per_second:.4g} {row.unit}/s" if row.samples_per_second else row.reason
        say(self._progress.console, f"{row.label}: {row.state}, {speed}")
