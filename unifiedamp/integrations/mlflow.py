"""A sink for MLflow: ``amp.record(MlflowSink())``. Needs MLflow 2.16.2 or newer, also as mlflow-skinny."""

from __future__ import annotations

import atexit
import hashlib
import re
import sys
import time
from importlib.util import find_spec

from ..errors import ConfigError
from ..recording.scalars import scalars
from ..recording.sinks import Record
from .versions import require

if find_spec("mlflow") is None:
    require("mlflow", "2.16.2", "unifiedamp.integrations.mlflow")

import mlflow
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException

AT_ONCE = 1000
"""Metrics that MLflow takes in one call."""
LONGEST = 250
"""Characters of a metric's name."""
TAGS = ("unifiedamp", "backend", "framework_version", "device", "policy", "loss_scale", "accumulate_steps")
"""Fields of a recording's header that become tags of the run."""
_REFUSED = re.compile(r"[^\w.\-/ :]", re.ASCII)


class MlflowSink:
    """Writes what ``amp.record`` records, and what ``recorder.log`` is given, as metrics of an MLflow run.

    The run is the one with ``run_id``, or the one that ``mlflow.start_run`` began; else a run of the sink's own. The
    sink ends its own run alone: as finished, or as failed where an exception ended the recording or the process.

    Names begin with ``prefix``. A name that MLflow refuses gets ``_`` for each character that it does not take, and the
    first digits of its hash. The step of a metric is the session's.

    Args:
        run_id: of a run that somebody else ends; None takes the active one, or begins one.
        tracking_uri: where runs are; None is MLflow's own setting.
        experiment: name of the experiment of a run of the sink's own; None is MLflow's default.
        run_name: its name.
        prefix: put before each name.

    Raises:
        ConfigError: MLflow refuses the place or the run; what it says is in the message.
    """

    def __init__(
        self, run_id: str | None = None, *, tracking_uri: str | None = None, experiment: str | None = None,
        run_name: str | None = None, prefix: str = "amp/",
    ) -> None:  # fmt: skip
        active = mlflow.active_run() if run_id is None and tracking_uri is None else None
        self.run_id = run_id if active is None else active.info.run_id
        self._owns, self._experiment, self._run_name = self.run_id is None, experiment, run_name
        self._prefix, self._open, self._failed = prefix, False, False
        try:
            self._client = mlflow.MlflowClient(tracking_uri=tracking_uri)
            if self.run_id is not None:
                self._client.get_run(self.run_id)
        except MlflowException as error:
            raise ConfigError(f"MlflowSink: {error}") from error

    def write(self, record: Record) -> None:
        """Log one record."""
        if not self._open:
            self._begin()
        if record["kind"] == "header":
            for name in TAGS:
                self._client.set_tag(self.run_id, f"unifiedamp.{name}", str(record[name]))
            return
        now = int(1000 * record.get("time", time.time()))
        rows = scalars(record).items()
        metrics = [Metric(metric_name(f"{self._prefix}{name}"), value, now, record["step"]) for name, value in rows]
        for first in range(0, len(metrics), AT_ONCE):
            self._client.log_batch(self.run_id, metrics=metrics[first : first + AT_ONCE])

    def _begin(self) -> None:
        try:
            if self.run_id is None:
                self.run_id = self._client.create_run(self._experiment_id(), run_name=self._run_name).info.run_id
            elif self._owns:
                self._client.update_run(self.run_id, status="RUNNING")
        except MlflowException as error:
            raise ConfigError(f"MlflowSink: {error}") from error
        self._open = True
        if self._owns:
            atexit.register(self._end_with_process)

    def _experiment_id(self) -> str:
        name = self._experiment or "Default"
        found = self._client.get_experiment_by_name(name)
        made: str = self._client.create_experiment(name) if found is None else found.experiment_id
        return made

    def fail(self, error: BaseException) -> None:
        """Note that an exception ended the recording."""
        self._failed = True

    def close(self) -> None:
        """End a run of the sink's own. Idempotent."""
        failed, self._failed = self._failed, False
        if self._open and self._owns:
            atexit.unregister(self._end_with_process)
            self._client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")
        self._open = False

    def _end_with_process(self) -> None:
        """End the run of a process that did not close the sink."""
        self._failed = self._failed or getattr(sys, "last_value", None) is not None
        self.close()


def metric_name(name: str) -> str:
    """Return a name that MLflow takes: the name itself where it does."""
    parts = [part for part in _REFUSED.sub("_", name).split("/") if part not in ("", ".", "..")]
    taken = "/".join(parts)
    if taken == name and len(name) <= LONGEST:
        return name
    return f"{taken[: LONGEST - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
