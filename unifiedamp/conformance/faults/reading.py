"""Looks at the state that a session trusts."""

# ruff: noqa: D102 (the role says what each method means, the class what is wrong with it)

from __future__ import annotations

from unifiedamp.backend import ScaleState

from .registry import TrainingFault, fault

EXHAUSTED = ("test_exhaustion_names_tensors_and_the_loss", "test_canonical_trace")


@fault(*EXHAUSTED)
class StateOfTheLookBefore(TrainingFault):
    """Every look at the state shows what the look before it should have shown."""

    _before: ScaleState | None = None

    def read_state(self) -> ScaleState:
        now = self.inner.read_state()
        self._before, before = now, self._before
        return now if before is None else before


@fault(*EXHAUSTED)
class PeeksShowNothing(TrainingFault):
    """A look that must not wait never sees anything."""

    def poll_state(self) -> ScaleState | None:
        return None
