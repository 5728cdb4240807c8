"""What the recorder receives."""

# ruff: noqa: D102 (the role says what each method means, the class what is wrong with it)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from unifiedamp.backend import Recorder, recording
from unifiedamp.backend.sketch import Sketch

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

    def begin(self, activations: bool, compare: bool = False) -> None:
        begin(self.inner, compare)


@fault("test_nothing_is_left_behind", "test_training_is_the_same_with_a_recorder", needs="recording")
class RecordingNotEnded(RecorderFault):
    """What a recorded step attached to models stays."""

    def end(self) -> recording.RecordedStep:
        found = self.inner.end()
        begin(self.inner, compare=False)
        return found


@fault("test_sketches_are_those_of_float64", needs="recording")
class SketchesOfScaledGradients(_Changed):
    """Sketches are of gradients that still carry the loss scale."""

    def _other(self, seen: recording.RecordedStep) -> recording.RecordedStep:
        if seen.sketches is None:
            return seen
        found = {name: _times(each, seen.scale) for name, each in seen.sketches.gradients.items()}
        return replace(seen, sketches=replace(seen.sketches, gradients=found))


@fault("test_runs_of_two_frameworks", "test_sketches_are_those_of_float64", needs="recording")
class OrderedSketchesInMemoryOrder(_Changed):
    """Sketches of ordered elements are of the elements as they lie in memory."""

    def _other(self, seen: recording.RecordedStep) -> recording.RecordedStep:
        if seen.sketches is None:
            return seen
        layers = [replace(each, ordered=each.values) for each in seen.sketches.activations]
        return replace(seen, sketches=replace(seen.sketches, activations=layers))


@fault("test_the_planted_divergence_is_named", needs="recording")
class WeightsOfTheFirstStep(RecorderFault):
    """Weights are always those of the first time they were asked for."""

    def weights(self) -> Mapping[str, Any]:
        if "_first" not in vars(self):
            self._first = self.inner.weights()
        return self._first


@fault("test_adams_moments_and_weights_are_recorded", needs="recording")
class MomentsLost(RecorderFault):
    """Of an optimizer's states nothing is counted, only weights are."""

    def states(self) -> recording.States:
        found = self.inner.states()
        kept = (recording.WEIGHT, recording.UPDATE)
        return {param: {name: each[name] for name in kept if name in each} for param, each in found.items()}


@fault("test_adams_moments_and_weights_are_recorded", needs="recording")
class StatesOfTheFirstStep(RecorderFault):
    """Weights and states are always those of the first time they were asked for."""

    def states(self) -> recording.States:
        if "_first" not in vars(self):
            self._first = self.inner.states()
        return self._first


def begin(recorder: Recorder, compare: bool) -> None:
    """Begin with activations, asking no backend for ``compare`` that does not know it."""
    if compare:
        recorder.begin(True, compare=True)
    else:
        recorder.begin(True)


def _times(sketch: Sketch, factor: float) -> Sketch:
    values, ordered = ([factor * value for value in part] for part in (sketch.values, sketch.ordered))
    return replace(sketch, norm=factor * sketch.norm, values=values, ordered=ordered)
