"""One training loop for every workload and framework; mixed precision is in the few lines that use ``amp``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

from ...config import plugins
from ...config.arguments import Arguments
from ...errors import ConfigError
from ...session import Amp
from ..configuration import Settings
from ..definition.loading import Loaded, define, make
from ..first_calls import FirstCalls
from .batches import native, samples
from .evaluation import evaluate
from .interrupt import Interrupt
from .run import Run, check_resumable

Step = Callable[[Any], Any]


class Watcher(Protocol):
    """What a run shows its progress to."""

    def epoch(self, row: dict[str, Any]) -> None:
        """An epoch has ended."""

    def follow(self, windows: Iterable[list[Any]], run: Run, count: int | None) -> Iterator[list[Any]]:
        """Yield ``windows``, of which the epoch has ``count`` (None: not known)."""


class Display(Watcher, Protocol):
    """What a command shows a run with."""

    def begin(self, run: Run) -> None:
        """A run begins, or goes on."""

    def end(self, run: Run) -> None:
        """It has ended, whichever way."""


def train(
    settings: Settings, display: Display, *, resume: bool = False, restart_scale: bool = False,
    record: Sequence[Any] = (), record_every: int = 100,
) -> Run:  # fmt: skip
    """Train as configured; write ``checkpoint.npz``, ``log.json`` and ``curves.png`` to ``settings.out``.

    Args:
        settings: the configuration.
        display: shows the progress.
        resume: continue from the checkpoint in ``settings.out``.
        restart_scale: resume a run without loss scaling under a policy with loss scaling.
        record: targets of ``amp.record`` (paths, sinks); empty turns recording off.
        record_every: steps between recorded steps.

    Raises:
        KeyboardInterrupt: Ctrl-C, or SIGTERM (as its subclass ``Terminated``); the checkpoint is written.
        AmpError: the configuration, workload or checkpoint is invalid, or the loss scale is exhausted.
    """
    check_alone(os.environ)
    if resume:
        check_resumable(settings)
    run = make_run(settings)
    step = make_step(run)
    run.begin(resume, restart_scale)
    recorder = run.amp.record(*record, every=record_every) if record else nullcontext()
    display.begin(run)
    try:
        with recorder:
            fit(run, step, display)
    finally:
        display.end(run)
    return run


def check_alone(environment: Mapping[str, str]) -> None:
    """Refuse to train the same workload in several processes at once, into one folder.

    Args:
        environment: the process's.

    Raises:
        ConfigError: torchrun started this process beside others.
    """
    size = environment.get("WORLD_SIZE", "1") if "LOCAL_RANK" in environment else "1"
    if size not in ("", "1"):
        raise ConfigError(
            f"train: torchrun started {size} processes, and a workload trains in one: each would train on all data "
            "and write the same folder. Start it without torchrun, or write the loop of several processes as a script "
            "(examples/torch/several_ranks.py)"
        )


def make_run(settings: Settings) -> Run:
    """Return a new run with prepared model and optimizers."""
    definition = define(settings.workload)
    amp = Amp.from_config(_for_one(settings.amp, definition.usual_backends))
    workload = make(definition, settings.given, amp.backend.name)
    with amp.scope():
        model = _checked(workload.call("make_model"), amp, workload)
        optimizers = _listed(workload.call("make_optimizer", model), workload)
    model, *optimizers = amp.prepare(model, *optimizers)
    return Run(settings, workload, amp, model, optimizers)


def _for_one(amp: Arguments, backends: Sequence[str] | None) -> Mapping[str, Any]:
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
    """Return the training step: a native batch → the unscaled loss."""
    train, amp, model, optimizers = run.settings.train, run.amp, run.model, run.optimizers
    loss_of = run.workload.parts["loss"]
    target = optimizers if len(optimizers) > 1 else optimizers[0]

    def train_step(batch: Any) -> Any:
        loss = amp.backward(lambda: loss_of(model, batch), target)
        for optimizer in optimizers:
            if train.clip_norm:
                amp.clip_grad_norm(optimizer, train.clip_norm)
            amp.step(optimizer)
        return loss

    return _compiled(amp, train_step) if train.compile else train_step


def _compiled(amp: Amp, train_step: Step) -> Step:
    """Return the step compiled; a batch's parts are arguments, which every framework's compiler takes."""

    def step_of_tuple(*batch: Any) -> Any:
        return train_step(batch)

    def step_of_list(*batch: Any) -> Any:
        return train_step(list(batch))

    whole, of_tuple, of_list = amp.compile(train_step), amp.compile(step_of_tuple), amp.compile(step_of_list)

    def compiled(batch: Any) -> Any:
        if type(batch) is tuple:
            return of_tuple(*batch)
        return of_list(*batch) if type(batch) is list else whole(batch)

    return compiled


def fit(run: Run, step: Step, watcher: Watcher) -> None:
    """Train from the current position of ``run`` to its end."""
    timed, compiled = FirstCalls(step, run.window), 0.0
    with Interrupt() as interrupt:
        while not run.finished:
            begun, seen = time.perf_counter(), 0
            for window in watcher.follow(run.windows(), run, run.window_count()):
                for batch in window:
                    run.count(timed(native(run.amp, batch)))
                    seen += samples(batch)
                if interrupt.asked:
                    run.save()
                    raise interrupt.error
                if run.out_of_steps:
                    break
            run.read_losses()
            compiling = max(0.0, timed.compile_seconds - compiled)  # in this epoch
            rate = seen / (time.perf_counter() - begun - compiling)
            _end_epoch(run, watcher, rate, compiling)
            compiled += compiling


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
