"""What the recorder receives."""

# ruff: noqa: D102 (the role says what each method means, the class what is wrong with it)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from unifiedamp.backend import recording

from .registry import RecorderFault, fault

COUNTS = ("test_each_value_is_counted_where_it_belongs", "test_every_value_of_a_gradient_is_counted")
STEPS = ("test_the_first_step_and_every_nth_are_recorded", "test_an_inf_in_one_gradient_at_a_recorded_step_is_named")


class _Changed(RecorderFault):
    def _other(self, seen: recording.RecordedStep) -> recording.RecordedStep:
        raise NotImplementedError

    def end(self) -> recording.RecordedStep:
        return self._other(self.inner.end())


@fault(*COUNTS, needs="recording")
class GradientsNotNoted(RecorderFault):
    """Gradients are not counted."""

    def note_gradients(self, optimizer: Any) -> Sequence[str]:
        return ()


@fault(*COUNTS, needs="recording")
class TrueGradientsAreTheScaled(_Changed):
    """Gradients are counted before they are divided by the scale only."""

    def _other(self, seen: recording.RecordedStep) -> recording.RecordedStep:
        same = {name: recording.GradientCounts(each.scaled, each.scaled) for name, each in seen.gradients.items()}
        return replace(seen, gradients=same)


@fault(*COUNTS, needs="recording")
class CountsShiftedByABucket(_Changed):
    """Every value is counted one power of two too low."""

    def _other(self, seen: recording.RecordedStep) -> recording.RecordedStep:
        def lower(counts: Sequence[int]) -> list[int]:
            return [counts[0] + counts[1], *counts[2:], 0]

        found = {
            name: recording.GradientCounts(lower(each.scaled), lower(each.true))
            for name, each in seen.gradients.items()
        }
        return replace(seen, gradients=found)


@fault(*STEPS, needs="recording")
class RecordedLossLost(_Changed):
    """A recorded step has no loss."""

    def _other(self, seen: recording.RecordedStep) -> recording.RecordedStep:
        return replace(seen, loss=None)


@fault(*STEPS, needs="recording")
class RecordedScaleIsOne(_Changed):
    """A recorded step has the scale 1."""

    def _other(self, seen: recording.RecordedStep) -> recording.RecordedStep:
        return replace(seen, scale=1.0)


@fault("test_a_layer_that_overflows_is_named_as_the_first", needs="recording")
class ActivationsLost(_Changed):
    """No layer's output is seen."""

    def _other(self, seen: recording.RecordedStep) -> recording.RecordedStep:
        return replace(seen, activations=())


@fault("test_a_layer_that_overflows_is_named_as_the_first", needs="recording")
class ActivationsReversed(_Changed):
    """Layers are reported in reverse."""

    def _other(self, seen: recording.RecordedStep) -> recording.RecordedStep:
        return replace(seen, activations=tuple(reversed(seen.activations)))


@fault("test_an_epsilon_that_float16_loses_is_named", needs="recording")
class EpsilonsLost(RecorderFault):
    """No layer's epsilon is reported."""

    def epsilons(self) -> list[recording.Epsilon]:
        return []


@fault("test_epsilons_of_optimizers_are_noted", needs="recording")
class EpsilonsOfOptimizersLost(RecorderFault):
    """Only layers' epsilons are reported."""

    def epsilons(self) -> list[recording.Epsilon]:
        return [each for each in self.inner.epsilons() if "adam" not in each.layer.lower()]


@fault("test_one_recorder_after_another", needs="recording")
class ActivationsAlwaysRecorded(RecorderFault):
    """Activations are recorded though gradients alone were asked for."""

    def begin(self, activations: bool) -> None:
        self.inner.begin(True)


@fault("test_nothing_is_left_behind", "test_training_is_the_same_with_a_recorder", needs="recording")
class RecordingNotEnded(RecorderFault):
    """What a recorded step attached to models stays."""

    def end(self) -> recording.RecordedStep:
        found = self.inner.end()
        self.inner.begin(True)
        return found
