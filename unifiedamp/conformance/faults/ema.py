"""Averages of weights that move by the wrong amount, and evaluation, saving and loading that lose something."""

# ruff: noqa: D102 (the role says what each method means, the class what is wrong with it)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from unifiedamp.backend import WeightAverage

from .registry import AveragingFault, fault

MOVES = ("test_an_average_moves_with_applied_steps",)
SWAPPED = ("test_the_model_answers_by_its_average_inside_and_by_its_weights_after",)
SAVED = ("test_a_saved_average_goes_on_bit_for_bit",)


class _Average:
    """Passes every call on to the right average."""

    def __init__(self, inner: WeightAverage) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _Faulty(AveragingFault):
    """Replaces averages."""

    average: ClassVar[type[_Average]] = _Average

    def start(self, model: Any, decay: float, warmup: bool) -> Any:
        return self.average(self.inner.start(model, decay, warmup))


@fault(*MOVES, needs="ema")
class AverageHardlyMoves(_Faulty):
    """An average keeps twice as much of itself as it should."""

    def start(self, model: Any, decay: float, warmup: bool) -> Any:
        return self.inner.start(model, (1.0 + decay) / 2.0, warmup)


@fault(*MOVES, needs="ema")
class WarmupIgnored(_Faulty):
    """An average has no warm-up."""

    def start(self, model: Any, decay: float, warmup: bool) -> Any:
        return self.inner.start(model, decay, False)


@fault(*MOVES, needs="ema")
class WarmupAlways(_Faulty):
    """An average has a warm-up that was not asked for."""

    def start(self, model: Any, decay: float, warmup: bool) -> Any:
        return self.inner.start(model, decay, True)


@fault(*MOVES, needs="ema")
class AverageReadStale(_Faulty):
    """An average is read as it was at the first look."""

    class average(_Average):
        """Remembers."""

        _first: dict[str, Any] | None = None

        def read(self) -> dict[str, Any]:
            self._first = self._first or self.inner.read()
            return self._first


@fault(*MOVES, needs="ema")
class UpdatesNotCounted(_Faulty):
    """An average says that no step has moved it."""

    class average(_Average):
        """Counts nothing."""

        def updates(self) -> list[int]:
            return [0] * len(self.inner.updates())


@fault(*SWAPPED, needs="ema")
class SwapInForgotten(_Faulty):
    """The model keeps its own weights inside."""

    class average(_Average):
        """Swaps nothing."""

        def swap_in(self) -> None:
            """Forgotten."""


@fault(*SWAPPED, needs="ema")
class SwapOutForgotten(_Faulty):
    """The model has the averages afterwards."""

    class average(_Average):
        """Restores nothing."""

        def swap_out(self) -> None:
            """Forgotten."""


@fault(*SAVED, needs="ema")
class LoadedAverageLost(_Faulty):
    """A loaded state sets the count, and leaves the average."""

    class average(_Average):
        """Writes no weights."""

        def write(self, weights: Mapping[str, Any], updates: Sequence[int]) -> None:
            self.inner.write(self.inner.read(), updates)


@fault(*SAVED, needs="ema")
class LoadedUpdatesLost(_Faulty):
    """A loaded state sets the average, and leaves the count."""

    class average(_Average):
        """Writes no count."""

        def write(self, weights: Mapping[str, Any], updates: Sequence[int]) -> None:
            self.inner.write(weights, [max(count, 1) for count in self.inner.updates()])


@fault("test_an_average_set_before_any_step", needs="ema")
class AverageSetTooEarlyIsLost(_Faulty):
    """An average that is set before the first applied step begins with the weights all the same."""

    class average(_Average):
        """Starts anew where no step was applied."""

        def write(self, weights: Mapping[str, Any], updates: Sequence[int]) -> None:
            self.inner.write(weights, updates)
            if not any(updates):
                self.inner.restart()


@fault("test_a_state_without_an_average_starts_anew", needs="ema")
class RestartForgotten(_Faulty):
    """A state without an average leaves the old one in place."""

    class average(_Average):
        """Never starts anew."""

        def restart(self) -> None:
            """Forgotten."""


@fault("test_an_average_of_a_model_that_trains_already", needs="ema")
class AverageStopsAtOnce(_Faulty):
    """No step moves an average."""

    def start(self, model: Any, decay: float, warmup: bool) -> Any:
        average = self.inner.start(model, decay, warmup)
        average.stop()
        return average
