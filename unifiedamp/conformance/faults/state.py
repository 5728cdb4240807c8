"""Numbers of the state that are read stale, or not taken over."""

# ruff: noqa: D102 (the role says what each method means, the class what is wrong with it)

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from unifiedamp.backend import ScaleState

from .registry import TrainingFault, fault

READ = ("test_every_number_is_taken_over", "test_canonical_trace")
WRITTEN = ("test_every_number_is_taken_over", "test_resuming_at_every_step_under_any_backend")


def _stale(name: str) -> type[TrainingFault]:
    class Stale(TrainingFault):
        _first: Any = None

        def read_state(self) -> ScaleState:
            state = self.inner.read_state()
            if self._first is None:
                self._first = getattr(state, name)
            return replace(state, **{name: self._first})

    Stale.__doc__ = f"``read_state`` returns {name} as it was at the first look."
    return Stale


def _dropped(name: str) -> type[TrainingFault]:
    class Dropped(TrainingFault):
        def write_state(self, state: ScaleState) -> None:
            self.inner.write_state(replace(state, **{name: getattr(self.inner.read_state(), name)}))

    Dropped.__doc__ = f"``write_state`` leaves {name} as it is."
    return Dropped


for _field in fields(ScaleState):
    for _prefix, _make, _tests in (("Read", _stale, READ), ("Written", _dropped, WRITTEN)):
        _layer = _make(_field.name)
        _words = "".join(word.capitalize() for word in _field.name.split("_"))
        _layer.__name__ = f"{_words}{'ReadStale' if _prefix == 'Read' else 'NotWritten'}"
        fault(*_tests)(_layer)


@fault("test_findings_before_a_loaded_state_are_dropped", needs="several_optimizers")
class UpdateWritesTheOldStateBack(TrainingFault):
    """A state that was written is lost at the next update of an iteration that was open."""

    _before: ScaleState | None = None

    def write_state(self, state: ScaleState) -> None:
        self._before = self.inner.read_state()
        self.inner.write_state(state)

    def update_scale(self) -> None:
        self.inner.update_scale()
        if self._before is not None:
            before, self._before = self._before, None
            self.inner.write_state(before)
