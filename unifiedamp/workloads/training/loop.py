"""One training loop for every workload and framework; mixed precision is in the few lines that use ``amp``."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ...backend import Launch, Ranks, read_launch
from ...config import plugins
from ...config.arguments import Arguments
from ...errors import ConfigError
from ...policy.schedule import asks_for_total
from ...session import Amp
from ..configuration import Settings
from ..definition.loading import Definition, Loaded, define, make
from ..first_calls import FirstCalls
from .batches import native, samples, window_count
from .display import Display, Silent, Watcher
from .evaluation import evaluate
from .interrupt import ERRORS, Interrupt
from .lost_process import report_lost_processes
from .restarts import is_of_this_run, mark_earlier_run
from .run import CHECKPOINT, Run, check_resumable
from .shard import check_same_data, on_all, shard

Step = Callable[..., Any]
Saved = Callable[[Run], None]


def train(
    settings: Settings, display: Display, *, resume: bool = False, restart_scale: bool = False,
    record: Sequence[Any] = (), record_every: int = 100, launch: Launch | None = None,
    saved: Saved | None = None,
) -> Run:  # fmt: skip
    """Train as configured; write ``checkpoint.npz``, ``log.json`` and ``curves.png`` to ``settings.out``.

    Where a launcher (torchrun, srun, mpirun, ``TF_CONFIG``, ``launch.py``) started several processes, they train
    together: each on its part of every batch; the first one writes and displays. Where it has started them anew, the
    run goes on from its checkpoint.

    Args:
        settings: the configuration.
        display: shows the progress.
        resume: continue from the checkpoint in ``settings.out``.
        restart_scale: resume a run without loss scaling under a policy with loss scaling.
        record: targets of ``amp.record`` (paths, sinks); empty turns recording off.
        record_every: steps between recorded steps.
        launch: the other processes; None reads what a launcher says in the environment.
        saved: called with the run on every process, after each checkpoint.

    Raises:
        KeyboardInterrupt: Ctrl-C, or SIGTERM (as its subclass ``Terminated``); the checkpoint is written.
        ProcessLostError: of several processes, another one has ended.
        AmpError: the configuration, workload or checkpoint is invalid, or the loss scale is exhausted.
    """
    launch = launch or read_launch(os.environ)
    if launch and not resume:
        resume = _goes_on(launch, settings.out / CHECKPOINT)
    if resume and launch is None:  # several processes tell each other first
        check_resumable(settings)
    run = make_run(settings, launch)
    run.saved, step = saved, make_step(run)
    with report_lost_processes(run.ranks):
        run.begin(resume, restart_scale)
        recorder = run.amp.record(*record, every=record_every) if record else nullcontext()  # the first rank writes
        shown = Silent() if run.ranks.rank else display
        shown.begin(run)
        try:
            with recorder:
                fit(run, step, shown)
        finally:
            shown.end(run)
        run.ranks.leave()
    return run


def _goes_on(launch: Launch, checkpoint: Path) -> bool:
    """Return whether this process was started anew to go on, by the command line that the run began with."""
    if launch.restarts:
        return is_of_this_run(checkpoint)
    if not launch.rank:
        mark_earlier_run(checkpoint)
    return False


def make_run(settings: Settings, launch: Launch | None = None) -> Run:
    """Return a new run with prepared model and optimizers.

    Args:
        settings: the configuration.
        launch: the other processes to join; None trains alone.
    """
    if launch and launch.role != "worker" and settings.amp["backend"] is not None:
        plugins.load_backend(settings.amp["backend"])  # serves, and exits: before the workload's file is imported
    definition = define(settings.workload)
    arguments = _for_one(settings.amp, definition.usual_backends)
    arguments, ranks = _joined(arguments, launch) if launch else (arguments, Ranks())
    if arguments["schedule"] is not None and asks_for_total(arguments["schedule"]):
        arguments = _with_total(arguments, settings, definition)
    amp = Amp.from_config(arguments)
    workload = make(definition, settings.given, amp.backend.name)
    with report_lost_processes(ranks), ranks.scope(), amp.scope():
        model = _checked(workload.call("make_model"), amp, workload)
        wrapped = ranks.wrap(model)
        optimizers = _listed(workload.call("make_optimizer", model), workload)
    for optimizer in optimizers:
        ranks.connect(optimizer)
    inside = model if wrapped is not model else None
    with report_lost_processes(ranks):
        wrapped, *optimizers = amp.prepare(wrapped, *optimizers)
    return Run(settings, workload, amp, wrapped if inside is None else inside, optimizers, wrapped, ranks)


def _with_total(amp: Arguments, settings: Settings, definition: Definition) -> Arguments:
    """Return the session's arguments with the iterations of the whole run, of which its schedule has percentages."""
    if amp["total_steps"] is not None:
        return amp
    train, window, epoch = settings.train, int(amp["accumulate_steps"]), None
    if amp["backend"] is not None:
        plugins.load_backend(amp["backend"])  # which imports the framework in its own way
        epoch = window_count(make(definition, settings.given, amp["backend"]), 0, window)
    whole = [train.epochs * epoch] if epoch is not None else []
    found = [*whole, train.steps] if train.steps is not None else whole
    if not found:
        raise ConfigError(
            "train: schedule has percentages of the run, and the workload's batches have no length: give "
            "amp.total_steps or train.steps"
        )
    return Arguments({**amp, "total_steps": min(found)}, amp.origins)


def _joined(amp: Arguments, launch: Launch) -> tuple[Arguments, Ranks]:
    """Return the session's arguments with this process's device, and the processes.

    A server or scheduler of MXNet's serves while the backend is loaded, and exits then.
    """
    if amp["backend"] is None:
        raise ConfigError(f"name a backend: --backend {' or '.join(plugins.installed_backends())}")
    ranks, device = plugins.load_backend(amp["backend"]).join(launch, amp["device"])
    return Arguments({**amp, "device": device}, amp.origins), ranks


def _for_one(amp: Arguments, backends: Sequence[str] | None) -> Arguments:
    """Return the session's arguments, with the only backend that is installed of those that the workload is for."""
    if amp["backend"] is not None:
        return amp
    here = plugins.installed_backends()
    found = [name for name in here if backends is None or name in backends]
    if len(found) > 1:
        raise ConfigError(f"name a backend: --backend {found[0]} (installed: {', '.join(found)})")
    if not found and backends:
        found = [backends[0]]
    return Arguments({**amp, "backend": found[0]}, {**amp.origins, "backend": "the workload"}) if found else amp


def _checked(model: Any, amp: Amp, workload: Loaded) -> Any:
    if not amp.backend.training.is_model(model):
        raise ConfigError(
            f"{workload.name}: make_model must return a model of backend {amp.backend.name!r}, got "
            f"{type(model).__module__}.{type(model).__qualname__}"
        )
    return model


def _listed(found: Any, workload: Loaded) -> list[Any]:
    if not isinstance(found, (list, tuple)):
        return [found]
    if not found:
        raise ConfigError(f"{workload.name}: make_optimizer returned no optimizer")
    return list(found)


def make_step(run: Run) -> Step:
    """Return the training step: a native batch, and the factor of its loss → the unscaled loss."""
    train, amp, model, optimizers = run.settings.train, run.amp, run.wrapped, run.optimizers
    loss_of = run.workload.parts["loss"]
    target = optimizers if len(optimizers) > 1 else optimizers[0]

    def train_step(batch: Any, factor: float = 1.0) -> Any:
        loss = amp.backward(lambda: _times(factor, loss_of(model, batch)), target)
        for optimizer in optimizers:
            if train.clip_norm:
                amp.clip_grad_norm(optimizer, train.clip_norm)
            amp.step(optimizer)
        return loss

    each = run.ranks.step(train_step)
    return _compiled(amp, each) if train.compile else each


def _times(factor: float, loss: Any) -> Any:
    return loss if factor == 1 else loss * factor


def _compiled(amp: Amp, train_step: Step) -> Step:
    """Return the step compiled; a batch's parts are arguments, which every framework's compiler takes. A batch whose
    loss has a factor (a short one, divided among processes) is not compiled for.
    """

    def step_of_tuple(*batch: Any) -> Any:
        return train_step(batch)

    def step_of_list(*batch: Any) -> Any:
        return train_step(list(batch))

    whole, of_tuple, of_list = amp.compile(train_step), amp.compile(step_of_tuple), amp.compile(step_of_list)

    def compiled(batch: Any, factor: float = 1.0) -> Any:
        if factor != 1:
            return train_step(batch, factor)
        if type(batch) is tuple:
            return of_tuple(*batch)
        return of_list(*batch) if type(batch) is list else whole(batch)

    return compiled


def fit(run: Run, step: Step, watcher: Watcher) -> None:
    """Train from the current position of ``run`` to its end."""
    timed = FirstCalls(step, run.window)
    with Interrupt(launched=run.ranks.size > 1) as interrupt:
        while not run.finished:
            begun, before, seen = time.perf_counter(), timed.timed, 0
            count = run.window_count()
            windows = on_all(run.windows(), run.workload, run.epoch, run.ranks, count)
            for window in watcher.follow(windows, run, count):
                if not seen:
                    check_same_data(run.workload, run.amp, run.epoch, window[0], run.ranks, count)
                for batch in window:
                    part, factor = shard(run.workload, batch, run.ranks)
                    run.count(timed(native(run.amp, part), factor))
                    seen += samples(batch)
                asked = run.ranks.largest(interrupt.asked)
                if asked:
                    run.save()
                    run.ranks.leave()
                    raise ERRORS[signal.Signals(asked)]
                if run.out_of_steps:
                    break
            run.read_losses()
            compiling = timed.compile_seconds(before)  # in this epoch
            rate = seen / (time.perf_counter() - begun - compiling)
            _end_epoch(run, watcher, rate, compiling)


def _end_epoch(run: Run, watcher: Watcher, rate: float, compiling: float) -> None:
    row = run.row(evaluate(run.workload, run.amp, run.model), rate, compiling)
    if run.out_of_steps and not _is_last(run):
        run.save()  # in the middle of an epoch, which a resumed run with more steps goes on with
    else:
        run.end_epoch(row)
    watcher.epoch(row)


def _is_last(run: Run) -> bool:
    count = run.window_count()
    return count is not None and run.batch >= count * run.window
