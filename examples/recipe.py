"""One training loop for PyTorch, TensorFlow/Keras and MXNet; the configuration selects the framework.

Run it with ``unifiedamp train --config examples/configs/digits_conv.toml --backend torch``, or with
``python examples/recipe.py`` and the same arguments. ``models/`` contains the framework-specific code (models,
optimizer, loss); mixed precision is in the few lines that use ``amp``.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import numpy as np
from unifiedamp_examples.interrupt import Interrupt
from unifiedamp_examples.report import Report
from unifiedamp_examples.run import Run, check_resumable
from unifiedamp_examples.settings import Settings

import unifiedamp as ua
from unifiedamp.workloads.first_calls import FirstCalls
from unifiedamp_examples import data as datasets
from unifiedamp_examples import models


def train(
    settings: Settings, report: Report, *, resume: bool = False, restart_scale: bool = False,
    record: Sequence[Any] = (), record_every: int = 100,
) -> Run:  # fmt: skip
    """Train as configured; write ``checkpoint.npz``, ``log.json`` and ``curves.png`` to ``settings.out``.

    Args:
        settings: the configuration.
        report: displays the progress.
        resume: continue from the checkpoint in ``settings.out``, from any framework.
        restart_scale: resume a run without loss scaling under a policy with loss scaling.
        record: targets of ``amp.record`` (paths, sinks); empty turns recording off.
        record_every: steps between recorded steps.

    Raises:
        KeyboardInterrupt: Ctrl-C, or SIGTERM (as its subclass ``Terminated``); the checkpoint is written.
        AmpError: the configuration, data or checkpoint is invalid, or the loss scale is exhausted.
    """
    if resume:
        check_resumable(settings)
    run, data = make_run(settings)
    train_step = make_step(run)
    run.begin(data.batch_count(settings.train.batch_size, run.window), resume, restart_scale)
    recorder = run.amp.record(*record, every=record_every) if record else nullcontext()
    report.begin(run)
    try:
        with recorder:
            fit(run, train_step, data, report)
    finally:
        report.picture(run)
    return run


def make_run(settings: Settings) -> tuple[Run, datasets.Data]:
    """Return a new run with prepared model and optimizer, and its data."""
    cfg = settings.train
    amp = ua.Amp.from_config(settings.amp)
    kit = models.for_backend(amp.backend.name)
    data = datasets.load(cfg.data, cfg.data_folder, kit).first(cfg.samples)

    with amp.scope():
        model = kit.make_model(cfg.model, data.shape, data.classes, cfg.seed, **cfg.size)
        optimizer = kit.make_optimizer(model, cfg.learning_rate, cfg.momentum)
    model, optimizer = amp.prepare(model, optimizer)
    return Run(settings, amp, kit, model, optimizer), data


def make_step(run: Run) -> Callable[[Any, Any], Any]:
    """Return the training step: native images and labels → unscaled loss."""
    cfg, amp, kit, model, optimizer = run.settings.train, run.amp, run.kit, run.model, run.optimizer

    def train_step(x: Any, y: Any) -> Any:
        loss = amp.backward(lambda: kit.loss_fn(model(x), y), optimizer)
        if cfg.clip_norm:
            amp.clip_grad_norm(optimizer, cfg.clip_norm)
        amp.step(optimizer)
        return loss

    return amp.compile(train_step) if cfg.compile else train_step


def fit(run: Run, train_step: Callable[[Any, Any], Any], data: datasets.Data, report: Report) -> None:
    """Train from the current position of ``run`` to the last epoch."""
    cfg, amp, kit = run.settings.train, run.amp, run.kit
    count = data.batch_count(cfg.batch_size, run.window)
    timed, compiled = FirstCalls(train_step, run.window), 0.0
    with Interrupt() as interrupt:
        while run.epoch < cfg.epochs:
            begun, first = time.perf_counter(), run.batch
            batches = data.batches(kit.IMAGE_AXES, cfg.batch_size, cfg.seed, run.epoch)
            for images, labels in report.follow(itertools.islice(batches, first, count), run, count):
                run.count(timed(amp.to_native(images), amp.to_native(labels)))
                if interrupt.asked and run.between_windows:
                    run.save()
                    raise interrupt.error
            run.read_losses()
            compiling = max(0.0, timed.compile_seconds - compiled)  # in this epoch
            rate = (count - first) * cfg.batch_size / (time.perf_counter() - begun - compiling)
            run.end_epoch(accuracy(amp, kit, run.model, data), rate, compiling)
            compiled += compiling
            report.epoch(run.history.epochs[-1])


def accuracy(amp: ua.Amp, kit: ModuleType, model: Any, data: datasets.Data, batch_size: int = 500) -> float:
    """Return the accuracy on the test images."""
    return float((predict(amp, kit, model, data, batch_size) == data.test_labels).mean())


def predict(amp: ua.Amp, kit: ModuleType, model: Any, data: datasets.Data, batch_size: int = 500) -> Any:
    """Return the predicted class of each test image, shape (n,)."""
    found = []
    with amp.inference(model):
        for start in range(0, len(data.test_labels), batch_size):
            images = data.test_images[start : start + batch_size].transpose(kit.IMAGE_AXES)
            found.append(amp.to_numpy(model(amp.to_native(np.ascontiguousarray(images)))).argmax(1))
    return np.concatenate(found)


if __name__ == "__main__":
    from typer import run

    from unifiedamp.cli.errors import reports_errors
    from unifiedamp.cli.train import train as command

    run(reports_errors(command))
