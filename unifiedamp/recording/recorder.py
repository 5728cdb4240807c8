"""``Recorder``: decides which steps are recorded, and makes records of what the backend returns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..backend import Backend, NonFiniteReport, ScaleState
from ..backend.recording import Activation, GradientCounts, RecordedStep, States
from ..backend.result import DISCARDED, NON_FINITE, StepResult
from ..errors import WrongObjectError, shown
from ..training.scale_monitor import ScaleMonitor
from .counts import Distribution, all_finite
from .nonfinite_origin import first_activation, first_gradient, run_order
from .ranks import MergedRanks
from .sinks import Record, Sink, close_all, number
from .sketched import step_to_json


class Recorder:
    """What ``amp.record`` returns: a context that records until it is left, or until :meth:`stop`.

    Args:
        backend: the session's; it has begun to record.
        monitor: the session's; asked for the gradients behind every skipped step where that is free.
        sinks: where records go.
        every: steps from one recorded step to the next; None records no steps, and the backend has not begun.
        first_step: the number of the step that comes next.
        activations: also record the inputs and outputs of layers.
        scaling: whether the session scales losses, and so skips steps.
        header: the first record.
        ranks: merges what several ranks record.
        compare: also record sketches of tensors and weights.
        states: also count the values of weights and of optimizer states.
        ran: returns how a recorded step ran: "eager", "compiled" or "uncompiled".
        owners: parameter name → number of its optimizer, as this recorder and those before it found them; a replayed
            trace does not tell.

    Attributes:
        step: the number of the last step that ended.
        recorded: how many steps were recorded.
        armed: whether the step in progress (or the next) is recorded.
    """

    def __init__(
        self, backend: Backend, monitor: ScaleMonitor, sinks: Sequence[Sink], every: int | None, first_step: int,
        activations: bool, scaling: bool, header: Record, ranks: MergedRanks, compare: bool, ran: Callable[[], str],
        owners: dict[str, int], states: bool,
    ) -> None:  # fmt: skip
        self._backend, self._monitor, self._sinks, self._every = backend, monitor, sinks, every
        self._activations, self._scaling, self._ranks = activations, scaling, ranks
        self.step, self.recorded, self.armed, self.stopped = first_step - 1, 0, every is not None, False
        self._compare, self._states, self._ran = compare, states, ran
        self._before = self._weights() if self.armed else {}
        self._keep_weights()
        self._reason, self._record_next = "first", False
        self._owners = owners
        self._order: list[str] = []
        self._skips, self._dropped = 0, False
        self._last = backend.training.read_state()
        self._last_recorded = self.step
        self._write(header)
        monitor.wants_skip_report = scaling and every is not None

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.stop(error)

    def stop(self, error: BaseException | None = None) -> None:
        """Stop recording, and close the files. Idempotent.

        Args:
            error: what ended the run; sinks with a method ``fail`` are told before they are closed.
        """
        if self.stopped:
            return
        self.stopped, self._monitor.wants_skip_report = True, False
        if self.armed:
            self.armed = False
            self._backend.recorder.end()
        for record in self._ranks.end(wait=error is None):
            self._write(record)
        close_all(self._sinks, error)

    def log(self, **numbers: Any) -> None:
        """Write numbers of the loop's own, such as ``loss=loss``, with the session's: scale and counts of steps.

        Reading them waits for the device: call it every so many steps.

        Args:
            **numbers: numbers, or native tensors that hold one.

        Raises:
            WrongObjectError: a value is no number; nothing is written.
        """
        if self.stopped:
            return
        state = self._backend.training.read_state()
        self._write({
            "kind": "numbers",
            "step": self.step,
            "time": time.time(),
            "scale": state.scale,
            "applied_steps": state.applied_steps,
            "skipped_steps": state.skipped_steps,
            "numbers": {name: number(self._read(name, value)) for name, value in numbers.items()},
        })  # fmt: skip

    def _read(self, name: str, value: Any) -> float:
        try:
            item = value.item() if hasattr(value, "item") else value
            return float(item if isinstance(item, (int, float)) else self._backend.device.to_numpy(item).item())
        except (AttributeError, TypeError, ValueError) as error:
            raise WrongObjectError(f"recorder.log: {name} must be a number, got {shown(value)}") from error

    # -- called by the session -----------------------------------------------------------------------------------

    def before_unscale(self, optimizer: Any, index: int) -> None:
        """The gradients of a window are complete, and still raw."""
        if self.armed:
            names = self._backend.recorder.note_gradients(optimizer)
            self._owners.update(dict.fromkeys(names, index))
            if self._compare and not self._tracing():  # the loop may have written to parameters since the last step
                self._before |= {name: each for name, each in self._weights().items() if name in names}

    def _tracing(self) -> bool:
        return bool(self._backend.compiler) and self._backend.compiler.tracing()

    def after_optimizer(self, outcome: StepResult | None) -> None:
        """An optimizer had its step; ``outcome`` is None where a trace was replayed."""
        if outcome is not None and self.armed and outcome.reason == DISCARDED:
            self._dropped = True
        if outcome is not None and self._backend.device.reads_without_sync and outcome.reason == NON_FINITE:
            self._skips += 1

    def due_within(self, steps: int) -> bool:
        """Whether one of the next ``steps`` is to be recorded, as far as is known now."""
        if self.stopped or self._every is None:
            return False
        return self.armed or self.step // self._every != (self.step + steps) // self._every

    def after_steps(self, count: int = 1) -> None:
        """``count`` iterations have ended."""
        if self.stopped or not count:
            return
        self.step += count
        if self.armed:
            self._record()
        elif self._skips:
            self._record_next = True
            self._write(self._skip(self._skips, exact=True, report=self._backend.training.nonfinite_report()))
        self._skips = 0
        self._arm_next()

    def discarded(self) -> None:
        """The iteration in progress was dropped: what was noted of it goes, and the next one is recorded instead."""
        if self.armed:
            self._backend.recorder.end()
            self._begin()

    def state_loaded(self, optimizers: int) -> None:
        """The session goes on from a loaded state: steps are numbered by it, and none between was missed.

        Args:
            optimizers: how many are prepared.
        """
        if self.stopped:
            return
        self.discarded()
        self._last, self._skips, self._record_next = self._backend.training.read_state(), 0, False
        attempted = self._last.applied_steps + self._last.skipped_steps
        self.step = self._last_recorded = attempted // max(1, optimizers)
        if not self.armed and self._every is not None:
            self._arm("first")

    # -- inside --------------------------------------------------------------------------------------------------

    def _arm_next(self) -> None:
        if self._every is None:
            return
        if (self.step + 1) % self._every == 0:
            self._arm("every")
        elif self._record_next:
            self._arm("after a skip")

    def _arm(self, reason: str) -> None:
        self.armed, self._reason, self._record_next = True, reason, False
        self._begin()

    def _begin(self) -> None:
        begin(self._backend, self._activations, self._compare)
        self._before = self._weights()
        self._keep_weights()

    def _keep_weights(self) -> None:
        if self._states:
            self._backend.recorder.keep_weights()

    def _weights(self) -> dict[str, Any]:
        """Return the weights as arrays, where runs are to be compared."""
        return dict(self._backend.recorder.weights()) if self._compare else {}

    def _record(self) -> None:
        self.armed = False
        seen = self._backend.recorder.end()
        state = self._backend.training.read_state()
        if seen.gradients:
            self._remember_order(seen)
            bad = [name for name, counts in seen.gradients.items() if not all_finite(counts.scaled)]
            skipped = len({self._owners.get(name, 0) for name in bad}) if self._scaling else 0
            if seen.local and not skipped and (self._skips or self._skipped_since(state) or state.scale < seen.scale):
                skipped = max(self._skips, 1)  # another rank's gradients, or what their sum became
            self._record_next = bool(skipped)
            self._report_missed(state.skipped_steps - self._last.skipped_steps - skipped, bad)
            record = self._step_record(seen, state, bad, skipped)
            self._write(record)
            for merged in self._ranks.note(self.step, seen, self._order, bool(skipped), record["gradients"]):
                self._write(merged)
            self.recorded += 1
        self._last, self._last_recorded, self._dropped = state, self.step, False

    def _skipped_since(self, state: ScaleState) -> bool:
        """Whether the step that ends was skipped, as far as the step before it was recorded."""
        return self._last_recorded == self.step - 1 and state.skipped_steps > self._last.skipped_steps

    def _report_missed(self, missed: int, bad: Sequence[str]) -> None:
        """Report skips since the last recorded step, and record the next step as well."""
        if missed > 0 and not self._backend.device.reads_without_sync:
            self._record_next = True
            # What the backend reports is of the last skipped step, which may be this one.
            report = NonFiniteReport() if bad else self._backend.training.nonfinite_report()
            self._write(self._skip(missed, exact=False, report=report))

    def _remember_order(self, seen: RecordedStep) -> None:
        last = {row.layer: place for place, row in enumerate(seen.activations) if row.place == "output"}
        self._order = run_order(list(seen.gradients), sorted(last, key=last.__getitem__))

    def _step_record(self, seen: RecordedStep, state: Any, bad: list[str], skipped: int) -> dict[str, Any]:
        further: dict[str, Any] = {}
        if seen.sketches is not None:
            before = {**self._before, **seen.weights}
            further["compare"] = step_to_json(seen, seen.sketches, before, self._weights())
            further["ran"] = self._ran()
        if self._states:
            further["states"] = _states(self._backend.recorder.states())
        return {
            "kind": "step",
            **further,
            "step": self.step,
            "reason": self._reason,
            "time": time.time(),
            "scale": seen.scale,
            "next_scale": state.scale,
            "loss": number(seen.loss),
            "applied": not (skipped or self._dropped),
            "applied_steps": state.applied_steps,
            "skipped_steps": state.skipped_steps,
            "gradients": {name: _distributions(counts) for name, counts in seen.gradients.items()},
            "activations": _rows(seen.activations),
            "non_finite": self._non_finite(seen, bad),
        }

    def _non_finite(self, seen: RecordedStep, bad: list[str]) -> dict[str, Any] | None:
        forward = seen.loss is not None and not math.isfinite(seen.loss)
        if not bad and not forward:
            return None
        return {
            "loss_was_finite": None if seen.loss is None else not forward,
            "first_activation": first_activation(seen.activations),
            "first_gradient": None if forward else first_gradient(bad, self._order),
            "gradients": bad,
        }

    def _skip(self, count: int, exact: bool, report: NonFiniteReport) -> dict[str, Any]:
        """Return the record of skipped steps that were not recorded themselves; ``report`` is of the last of them."""
        state = self._backend.training.read_state()
        blamed = None if report.loss_was_finite is False else first_gradient(report.tensors, self._order)
        return {
            "kind": "skip",
            "step": self.step,
            "since": self.step - 1 if exact else self._last_recorded,
            "count": count,
            "exact": exact,
            "next_scale": state.scale,
            "skipped_steps": state.skipped_steps,
            "non_finite": {
                "loss_was_finite": report.loss_was_finite,
                "first_activation": None,
                "first_gradient": blamed,
                "gradients": list(report.tensors),
            },
        }

    def _write(self, record: Mapping[str, Any]) -> None:
        for sink in self._sinks:
            sink.write(record)


def begin(backend: Backend, activations: bool, compare: bool) -> None:
    """Make a backend record; one that knows nothing of ``compare`` is never asked for it."""
    if compare:
        backend.recorder.begin(activations, compare=True)
    else:
        backend.recorder.begin(activations)


def _distributions(counts: GradientCounts) -> dict[str, Any]:
    scaled = Distribution.of(counts.scaled).to_json()
    same = counts.true is counts.scaled or counts.true == counts.scaled
    return {"scaled": scaled, "true": dict(scaled) if same else Distribution.of(counts.true).to_json()}


def _states(states: States) -> dict[str, dict[str, Any]]:
    return {
        param: {
            name: {"dtype": each.dtype, "norm": number(each.norm), **Distribution.of(each.counts).to_json()}
            for name, each in found.items()
        }
        for param, found in states.items()
    }


def _rows(activations: Sequence[Activation]) -> list[dict[str, Any]]:
    """Return one row per layer and place, the largest value of all its runs, in the order of the first."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for each in activations:
        row = rows.setdefault(
            (each.layer, each.place),
            {"layer": each.layer, "kind": each.kind, "place": each.place, "dtype": each.dtype, "largest": 0.0},
        )
        before = float(row["largest"])
        if not before >= each.largest and not math.isnan(before):
            row["largest"] = number(each.largest)
    return list(rows.values())
