"""One run of a recipe, in a separate process: the worker's side of a comparison (see ``workers.py``).

Requests are ``{"do": name, …}``, with a method of :class:`Job` for each name.
"""

from __future__ import annotations

import gc
import itertools
import math
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ... import machine
from ...errors import AmpWarning, LossScaleExhausted
from ..recipes import recipe_module
from ..workers import Handle, OutOfMemory, ReportProgress
from .scores import scores

WARM_UP = 3
"""Windows trained before the clock starts, beyond the training that came before."""
TRIED = 3
"""Windows that a batch size must survive: the optimizer makes its state in the first, memory is laid out anew later."""


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
            raise

    return handle


class Job:
    """A recipe under one configuration.

    Args:
        report_progress: called with the progress of a training: [batches so far, batches in all].
    """

    def __init__(self, report_progress: ReportProgress) -> None:
        self._report_progress = report_progress
        self._run: Any = None

    def begin(self, config: str, out: str, amp: dict[str, Any], train: dict[str, Any]) -> dict[str, Any]:
        """Make the session, the model and the data, and return what they are.

        Args:
            config: the recipe's configuration file.
            out: an empty folder, for the recipe's checkpoints.
            amp, train: settings that override the file's.
        """
        self._recipe = recipe_module("recipe")
        self._settings = recipe_module("settings").read_settings(Path(config), Path(out), amp=amp, train=train)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", AmpWarning)
            self._run, self._data = self._recipe.make_run(self._settings)
        self._step = self._recipe.make_step(self._run)
        self._batches = self._endless()
        return {
            "policy": str(self._run.amp.policy),
            "device": self._run.amp.capabilities.device,
            "samples": len(self._data.train_labels),
            "window": self._run.window,
            "notes": list(dict.fromkeys(str(one.message) for one in caught if issubclass(one.category, AmpWarning))),
        }

    def train(self) -> dict[str, Any]:
        """Train as the configuration says and return how well."""
        run, data = self._run, self._data
        self._recipe.fit(run, self._step, data, _Reporting(self._report_progress, run.settings.train.epochs))
        predicted = self._recipe.predict(run.amp, run.kit, run.model, data)
        state = run.amp.state_dict()["state"]
        return {
            **asdict(scores(data.test_labels.tolist(), predicted.tolist())),
            "test_images": len(data.test_labels),
            "loss": run.history.epochs[-1]["loss"],
            "compile_seconds": sum(row["compile_seconds"] for row in run.history.epochs),
            "losses": [loss if math.isfinite(loss) else None for loss in run.history.losses],
            "scales": [list(row) for row in run.history.scales],
            **{key: state[key] for key in ("scale", "applied_steps", "skipped_steps")},
            **self._memory(),
        }

    def turn(self, windows: int) -> dict[str, Any]:
        """Train ``windows`` optimizer steps more against the clock; return the seconds and the samples seen."""
        batches = windows * self._run.window
        start = time.perf_counter()
        self._advance(batches)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "samples": batches * self._run.settings.train.batch_size}

    def fits(self, batch_size: int, memory: int | None = None) -> bool:
        """Return whether steps of this batch size can be trained; lack of memory is an answer, other errors are raised.

        Args:
            batch_size: samples per batch.
            memory: bytes that the process may hold, where the device is the CPU; None sets no limit.
        """
        if memory is not None and self._run.amp.backend.device.peak_memory() is None:
            machine.limit_memory(memory)
        train = self._settings.train.model_copy(update={"batch_size": batch_size})
        try:
            run, data = self._recipe.make_run(replace(self._settings, train=train))
            step = self._recipe.make_step(run)
            batches = data.batches(run.kit.IMAGE_AXES, batch_size, train.seed, 0)
            for _ in range(TRIED * run.window):
                images, labels = next(batches, None) or _repeated(data, run.kit, batch_size)
                loss = step(run.amp.to_native(images), run.amp.to_native(labels))
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
        train = run.settings.train
        epochs = (self._data.batches(run.kit.IMAGE_AXES, train.batch_size, train.seed, n) for n in itertools.count())
        self._batches = itertools.chain.from_iterable(epochs)
        try:
            while len(losses) < steps and not _clean(skipped, clean):
                loss = self._advance(run.window)
                losses.append(loss if math.isfinite(loss) else None)
                skipped.append(run.amp.skipped_steps)
        except LossScaleExhausted as error:
            found["stopped"] = str(error)
        return {**found, "scale": run.amp.loss_scale}

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
        step = self._recipe.make_step(run)
        return int(recipe_module("trace").write_trace(run, step, self._data, steps, Path(path)))

    def out_of_memory(self, error: BaseException) -> bool:
        """Return whether an exception says that memory ran out."""
        if self._run is None:
            return isinstance(error, MemoryError)
        return bool(self._run.amp.backend.device.out_of_memory(error))

    def _advance(self, batches: int) -> float:
        """Train, and wait for the last loss: from one wait to the next lie exactly ``batches`` whole steps."""
        import numpy as np

        amp = self._run.amp
        for images, labels in itertools.islice(self._batches, batches):
            loss = self._step(amp.to_native(images), amp.to_native(labels))
        return float(np.ravel(amp.to_numpy(loss))[0])

    def _endless(self) -> Iterator[tuple[Any, Any]]:
        """Yield the batches of the epochs that follow the training's."""
        train = self._settings.train
        for epoch in itertools.count(train.epochs):
            yield from self._data.batches(self._run.kit.IMAGE_AXES, train.batch_size, train.seed, epoch)

    def _memory(self) -> dict[str, Any]:
        on_device = self._run.amp.backend.device.peak_memory()
        if on_device is not None:
            return {"peak_memory": on_device, "memory_of": "device"}
        return {"peak_memory": machine.peak_process_memory(), "memory_of": "process"}


def _repeated(data: Any, kit: Any, size: int) -> tuple[Any, Any]:
    """Return a batch that the data cannot fill twice: the first images, in the kit's layout."""
    import numpy as np

    return np.ascontiguousarray(data.train_images[:size].transpose(kit.IMAGE_AXES)), data.train_labels[:size]


def _clean(skipped: Sequence[int], clean: int | None) -> bool:
    """Return whether the last ``clean`` steps were applied, given the steps skipped until each."""
    if clean is None or len(skipped) < clean:
        return False
    return skipped[-1] == (skipped[-clean - 1] if len(skipped) > clean else 0)


class _Reporting:
    """Stands in for the recipe's report: reports progress, and prints nothing."""

    def __init__(self, report_progress: ReportProgress, epochs: int) -> None:
        self._report_progress, self._epochs, self._last = report_progress, epochs, 0.0

    def epoch(self, row: dict[str, Any]) -> None:
        """Ignore an epoch's row."""

    def follow(self, batches: Iterable[Any], run: Any, count: int) -> Iterator[Any]:
        """Yield ``batches``; report the progress at most ten times a second."""
        for batch in batches:
            yield batch
            if time.monotonic() - self._last > 0.1:
                self._last = time.monotonic()
                self._report_progress([run.epoch * count + run.batch, self._epochs * count])
