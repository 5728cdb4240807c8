"""What the forecast receives."""

# ruff: noqa: D102 (the role says what each method means, the class what is wrong with it)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from unifiedamp.backend import ProductCounts

from .registry import ForecasterFault, fault

COUNTS = ("test_counts_of_one_forecast_step", "test_every_value_of_a_product_is_counted")


@fault(*COUNTS, needs="forecast")
class OutputGradientsNotCounted(ForecasterFault):
    """The gradients of layers' outputs are not counted."""

    def end(self) -> Sequence[ProductCounts]:
        found = self.inner.end()
        return [replace(one, tensors={k: v for k, v in one.tensors.items() if k != "gradient"}) for one in found]


@fault(*COUNTS, needs="forecast")
class LastLayerNotCounted(ForecasterFault):
    """The last layer is left out."""

    def end(self) -> Sequence[ProductCounts]:
        return list(self.inner.end())[:-1]


@fault("test_nothing_is_left_by_a_forecast", "test_evaluation_and_dropped_steps_are_not_forecast", needs="forecast")
class ForecastNotEnded(ForecasterFault):
    """What a counted step attached to models stays."""

    def end(self) -> Sequence[ProductCounts]:
        found = self.inner.end()
        self.inner.begin()
        return found
