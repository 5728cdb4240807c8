"""Looks at the state that a session trusts."""

# ruff: noqa: D102 (what each method means, LegacyBackend says; what is wrong with it, its class)

from __future__ import annotations

from unifiedamp.backend import LegacyBackend, ScaleState

from .registry import fault

EXHAUSTED = ("test_exhaustion_names_tensors_and_the_loss", "test_canonical_trace")


@fault(*EXHAUSTED)
class StateOfTheLookBefore(LegacyBackend):
    """Every look at the state shows what the look before it should have shown."""

    _before: ScaleState | None = None

    def read_state(self) -> ScaleState:
        now = super().read_state()
        self._before, before = now, self._before
        return now if before is None else before


@fault(*EXHAUSTED)
class PeeksShowNothing(LegacyBackend):
    """A look that must not wait never sees anything."""

    def peek_state(self) -> ScaleState | None:
        return None
