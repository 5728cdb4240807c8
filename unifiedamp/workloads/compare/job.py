"""One run of a workload, in a separate process: the worker's side of a comparison (see ``workers.py``).

Requests are ``{"do": name, …}``, with a method of :class:`Job` for each name.
"""

from __future__ import annotations

import gc
import itertools
import math
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ... import machine
from ...errors import AmpWarning, LossScaleExhausted
from ..configuration import TrainTable, read_settings, read_source
from ..training.batches import endless, native, samples, window_count
from ..training.loop import fit, make_run, make_step
from ..training.run import Run
from ..workers import Handle, OutOfMemory, ReportProgress
from .trace import write_trace

WARM_UP = 3
"""Windows trained before the clock starts, beyond the training that came before."""
TRIED = 3
"""Windows that a batch size must survive: the optimizer makes its state in the first, memory is laid out anew later."""

BATCH_SIZE = "batch_size"
"""The setting of a workload that is varied."""


def make(report_progress: ReportProgress) -> Handle:
    """Return the handler of a new job."""
    job = Job(report_progress)

    def handle(request: dict[str, Any]) -> Any:
        arguments = {key: value for key, value in request.items() if key != "do"}
        try:
            return getattr(job, request["do"])(**arguments)
        except Exception as error:
            if job.out_of_memory(error):
                raise OutOfMemory(f"out of memory ({type(error).__name__})") from error
            job.note_place(error)
            raise

    return handle


class Job:
    """A workload under one configuration.

    Args:
        report_progress: called with the progress of a training: [batches so far, batches in all].
    """

    def __init__(self, report_progress: ReportProgress) -> None:
        self._report_progress = report_progress
        self._run: Any = None

    def begin(
        self, target: str, config: str | None, out: str, amp: dict[str, Any], train: dict[str, Any],
        given: dict[str, Any],
    ) -> dict[str, Any]:  # fmt: skip
        """Make the session and the model, and return what they are.

        Args:
            target, config: what the command line names; see ``configuration.read_source``.
            out: an empty folder, for checkpoints.
            amp, train: settings that override the configuration's.
            given: settings of the workload.
        """
        source = read_source(target, None if config is None else Path(config))
        self._settings = read_settings(source, Path(out), amp=amp, train=train, given=given)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", AmpWarning)
            self._run = make_run(self._settings)
        self._step = make_step(self._run)
        self._batches = endless(self._run.workload, self._settings.train.epochs)
        return {
            "policy": str(self._run.amp.policy),
            "device": self._run.amp.capabilities.device,
            "samples": self._samples(),
            "window": self._run.window,
            "notes": list(dict.fromkeys(str(one.message) for one in caught if issubclass(one.category, AmpWarning))),
        }

    def _samples(self) -> int | None:
        """Return how many samples an epoch has, where its batches have a length."""
        count = window_count(self._run.workload, 0, 1)
        if not count:
            return None
        return count * samples(next(endless(self._run.workload)))

    def train(self) -> dict[str, Any]:
        """Train as the configuration says and return how well."""
        run, watcher = self._run, _Reporting(self._report_progress, self._settings.train)
        fit(run, self._step, watcher)
        state = run.amp.state_dict()["state"]
        scores = watcher.row["scores"]
        return {
            **{name: scores.pop(name, None) for name in ("accuracy", "precision", "recall", "f1")},
            "test_images": int(scores.pop("samples", None) or 0),
            "scores": scores,
            "loss": watcher.row["loss"],
            "compile_seconds": watcher.compile_seconds,
            "losses": [loss if math.isfinite(loss) else None for loss in run.history.losses],
            "scales": [list(row) for row in run.history.scales],
            **{key: state[key] for key in ("scale", "applied_steps", "skipped_steps")},
            **self._memory(),
        }

    def turn(self, windows: int) -> dict[str, Any]:
        """Train ``windows`` optimizer steps more against the clock; return the seconds and the samples seen."""
        start = time.perf_counter()
        _, seen = self._advance(windows * self._run.window)
        return {"seconds": time.perf_counter() - start, "samples": seen}

    def fits(self, batch_size: int, memory: int | None = None) -> bool:
        """Return whether steps of this batch size can be trained; lack of memory is an answer, other errors are raised.

        Args:
            batch_size: samples per batch, the workload's setting of that name.
            memory: bytes that the process may hold, where the device is the CPU; None sets no limit.
        """
        if memory is not None and self._run.amp.backend.device.peak_memory() is None:
            machine.limit_memory(memory)
        settings = replace(self._settings, given={**self._settings.given, BATCH_SIZE: batch_size})
        try:
            run = make_run(settings)
            step, wanted = make_step(run), TRIED * run.window
            # The data may not fill as many.
            some = list(itertools.islice(run.workload.batches(0), wanted))
            if not some or samples(some[0]) < batch_size:
                return False
            for batch in itertools.islice(itertools.cycle(some), wanted):
                loss = step(native(run.amp, batch))
            run.amp.to_numpy(loss)
        except Exception as error:
            if self.out_of_memory(error):
                return False
            raise
        finally:
            gc.collect()
        return True

    def profile(self, windows: int) -> dict[str, Any]:
        """Return the device's kernels of some steps, name → seconds, or the reason why there are none."""
        backend = self._run.amp.backend
        support = backend.capabilities().feature("kernel_profile")
        if not support:
            return {"reason": support.reason}
        self._advance(WARM_UP * self._run.window)
        return {"kernels": backend.profiler.kernel_times(lambda: self._advance(windows * self._run.window))}

    def probe(self, steps: int, clean: int | None = None) -> dict[str, Any]:
        """Train from where the model stands, on the first batches, and check after every step.

        Args:
            steps: optimizer steps at most.
            clean: stop after this many applied steps in a row; None goes on.

        Returns:
            ``losses`` (of each step, None where not finite), ``skipped`` (steps skipped until then, after each step),
            ``scale`` (at the end), ``stopped`` (why it ended early, or ""), ``layers`` (paths of those that multiply
            matrices).
        """
        run, losses, skipped = self._run, list[float | None](), list[int]()
        found = {"losses": losses, "skipped": skipped, "stopped": "", "layers": self._layers()}
        self._batches = endless(run.workload)
        try:
            while len(losses) < steps and not _clean(skipped, clean):
                loss, _ = self._advance(run.window)
                losses.append(loss if math.isfinite(loss) else None)
                skipped.append(run.amp.skipped_steps)
        except LossScaleExhausted as error:
            found["stopped"] = str(error)
        return {**found, "scale": run.amp.loss_scale}

    def count(self, steps: int) -> dict[str, Any]:
        """Train some steps on the first batches; return what ``ForecastRun.counted`` does."""
        self._batches = endless(self._run.workload)
        with self._run.amp.forecast(steps=steps) as counted:
            self._advance(steps * self._run.window)
        found: dict[str, Any] = counted.counted()
        return found

    def _layers(self) -> list[str]:
        backend = self._run.amp.backend
        if not backend.capabilities().feature("shape_advice"):
            return []
        return [shape.layer for shape in backend.layer_shapes.matmul_shapes([self._run.model])]

    def trace(self, steps: int, path: str) -> int:
        """Train ``steps`` optimizer steps from the first weights; write what each layer did to ``path``.

        Gradients are not clipped: by their common norm, a fault in one layer would show in all.
        """
        run = self._run
        run.settings = replace(self._settings, train=self._settings.train.model_copy(update={"clip_norm": None}))
        return write_trace(run, make_step(run), steps, Path(path))

    def note_place(self, error: BaseException) -> None:
        """Note the line of the workload's file that an exception came through last, as "my_model.py:12"."""
        if self._run is not None:
            path = self._settings.workload.path.resolve()
            frames = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in frames if frame.filename == str(path)]
            for line in lines[-1:]:
                error.add_note(f"{path.name}:{line}")

    def out_of_memory(self, error: BaseException) -> bool:
        """Return whether an exception says that memory ran out."""
        if self._run is None:
            return isinstance(error, MemoryError)
        return bool(self._run.amp.backend.device.out_of_memory(error))

    def _advance(self, batches: int) -> tuple[float, int]:
        """Train, and wait for the last loss: from one wait to the next lie exactly ``batches`` whole steps.

        Returns:
            The last loss, and the number of samples seen.
        """
        import numpy as np

        amp, seen = self._run.amp, 0
        for batch in itertools.islice(self._batches, batches):
            loss = self._step(native(amp, batch))
            seen += samples(batch)
        return float(np.ravel(amp.to_numpy(loss))[0]), seen

    def _memory(self) -> dict[str, Any]:
        on_device = self._run.amp.backend.device.peak_memory()
        if on_device is not None:
            return {"peak_memory": on_device, "memory_of": "device"}
        return {"peak_memory": machine.peak_process_memory(), "memory_of": "process"}


def _clean(skipped: Sequence[int], clean: int | None) -> bool:
    """Return whether the last ``clean`` steps were applied, given the steps skipped until each."""
    if clean is None or len(skipped) < clean:
        return False
    return skipped[-1] == (skipped[-clean - 1] if len(skipped) > clean else 0)


class _Reporting:
    """Watches a run: reports progress, and prints nothing.

    Attributes:
        row: that of the last epoch.
        compile_seconds: of all epochs.
    """

    def __init__(self, report_progress: ReportProgress, train: TrainTable) -> None:
        self._report_progress, self._train, self._last = report_progress, train, 0.0
        self.row: dict[str, Any] = {}
        self.compile_seconds = 0.0

    def epoch(self, row: dict[str, Any]) -> None:
        """Keep an epoch's row."""
        self.row = row
        self.compile_seconds += row["compile_seconds"]

    def follow(self, windows: Iterable[list[Any]], run: Run, count: int | None) -> Iterator[list[Any]]:
        """Yield ``windows``; report the progress at most ten times a second."""
        total = self._train.steps or (None if count is None else self._train.epochs * count)
        for window in windows:
            yield window
            if time.monotonic() - self._last > 0.1:
                self._last = time.monotonic()
                self._report_progress([run.steps, total or 0])
