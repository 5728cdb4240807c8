"""A sink for Weights & Biases: ``amp.record(WandbSink())``. Needs wandb 0.18.7 or newer."""

from __future__ import annotations

import os
from typing import Any

from ..errors import ConfigError
from ..recording.scalars import gradients, scalars
from ..recording.sinks import Record
from .versions import require

require("wandb", "0.18.7", "unifiedamp.integrations.wandb")

import wandb

OFFLINE = "offline"


class WandbSink:
    """Writes what ``amp.record`` records, and what ``recorder.log`` is given, to a run of Weights & Biases.

    The run is yours, or the one that ``wandb.init`` began; else a run of the sink's own, which is offline (nothing is
    sent; ``wandb sync`` does that later) unless ``mode`` or ``WANDB_MODE`` says otherwise. The sink finishes its own
    run alone, as failed where an exception ended the recording.

    Names begin with ``prefix``. Curves are drawn over ``amp/step``, so they need no place in the run's own steps. Each
    record is a separate row; in a run whose rows you number (``run.log(..., step=n)``), pass ``commit=False``: the
    numbers then join the row in progress, and of several the last counts.

    Args:
        run: a run of ``wandb.init``; None takes the one in progress, or begins one.
        prefix: put before each name.
        commit: whether each record ends a row.
        **options: of ``wandb.init``, for a run of the sink's own: ``project``, ``dir``, ``name``, ``mode``.

    Raises:
        ConfigError: ``options`` beside a run that is not the sink's own, or a run that has ended.
    """

    def __init__(self, run: Any = None, *, prefix: str = "amp/", commit: bool = True, **options: Any) -> None:
        given = run if run is not None else wandb.run
        if given is not None and options:
            raise ConfigError(
                f"WandbSink: {', '.join(options)}: settings of wandb.init, and there is a run already; leave them out, "
                "or finish that run first"
            )
        self._given, self._prefix, self._commit, self._options = given, prefix, commit, options
        self._run: Any = None
        self._failed = False

    @property
    def run(self) -> Any:
        """The run that is written to; None before the first record of a run of the sink's own."""
        return self._given if self._given is not None else self._run

    def write(self, record: Record) -> None:
        """Log one record."""
        run = self._opened()
        if record["kind"] == "header":
            self._define(run)
            run.config.update({"unifiedamp": dict(record)}, allow_val_change=True)
            return
        row: dict[str, Any] = {f"{self._prefix}{name}": value for name, value in scalars(record).items()}
        for name, form, counts in gradients(record):
            if counts.there:
                row[f"{self._prefix}exponents_{form}/{name}"] = _histogram(counts.exponents)
        run.log({f"{self._prefix}step": record["step"], **row}, commit=self._commit)

    def _opened(self) -> Any:
        if self.run is None:
            mode = self._options.get("mode") or os.environ.get("WANDB_MODE") or OFFLINE
            self._run = wandb.init(**{**self._options, "mode": mode})
            # A sink that is written to again after it was closed goes on with its run.
            self._options |= {"id": self._run.id, "resume": "allow"}
        return self.run

    def _define(self, run: Any) -> None:
        step = f"{self._prefix}step"
        run.define_metric(step, hidden=True)
        run.define_metric(f"{self._prefix}*", step_metric=step)

    def fail(self, error: BaseException) -> None:
        """Note that an exception ended the recording."""
        self._failed = True

    def close(self) -> None:
        """Finish a run of the sink's own. Idempotent."""
        run, self._run = self._run, None
        failed, self._failed = self._failed, False
        if run is not None:
            run.finish(exit_code=int(failed))


def _histogram(exponents: dict[int, int]) -> Any:
    low, high = min(exponents), max(exponents)
    counts = [exponents.get(exponent, 0) for exponent in range(low, high + 1)]
    edges = [exponent - 0.5 for exponent in range(low, high + 2)]
    return wandb.Histogram(np_histogram=(counts, edges))
