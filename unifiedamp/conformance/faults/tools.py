"""Arrays in and out, batches made ready, custom functions, whole models, the plan."""

# ruff: noqa: D102 (the role says what each method means, the class what is wrong with it)

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from unifiedamp.backend import Backend, MatmulShape, PlanRow, Policy

from .registry import ConverterFault, DeviceFault, LayerShapesFault, WeightsFault, fault

PREFETCH = "test_all_of_them_in_order"
ARRAYS = "test_round_trip_of_arrays"


@fault("test_models_and_optimizers_are_as_before", "test_state_is_as_found")
class CloseDoesNothing(Backend):
    """``close`` leaves all that was attached where it is."""

    def close(self) -> None:
        """Forgotten."""


@fault(ARRAYS)
class ArraysInHalf(DeviceFault):
    """``to_native`` rounds float32 to float16."""

    def to_native(self, array: Any, dtype: str | None = None) -> Any:
        half = isinstance(array, np.ndarray) and array.dtype == np.float32
        return self.inner.to_native(array.astype(np.float16) if half else array, dtype)


@fault("test_whole_numbers_stay_whole")
class IntegersBecomeFloats(DeviceFault):
    """``to_native`` makes whole numbers float32."""

    def to_native(self, array: Any, dtype: str | None = None) -> Any:
        whole = isinstance(array, np.ndarray) and array.dtype.kind in "iu"
        return self.inner.to_native(array.astype(np.float32) if whole else array, dtype)


@fault(ARRAYS)
class NumbersOutInHalf(DeviceFault):
    """``to_numpy`` rounds float32 to float16."""

    def to_numpy(self, tensor: Any) -> Any:
        found = np.asarray(self.inner.to_numpy(tensor))
        return found.astype(np.float16) if found.dtype == np.float32 else found


def _swapped(batches: Iterable[Any]) -> Iterator[Any]:
    held: list[Any] = []
    for batch in batches:
        held.append(batch)
        if len(held) == 2:
            yield from reversed(held)
            held.clear()
    yield from held


@fault(PREFETCH)
class BatchesSwapped(DeviceFault):
    """``prefetch`` returns each pair of batches in reverse."""

    def prefetch(self, batches: Iterable[Any], size: int) -> Iterable[Any]:
        return self.inner.prefetch(_swapped(batches), size)


@fault(PREFETCH)
class LastBatchLost(DeviceFault):
    """``prefetch`` loses the last batch."""

    def prefetch(self, batches: Iterable[Any], size: int) -> Iterable[Any]:
        return self.inner.prefetch(self._but_last(batches), size)

    def _but_last(self, batches: Iterable[Any]) -> Iterator[Any]:
        held: list[Any] = []
        for batch in batches:
            yield from held
            held = [batch]


@fault(PREFETCH)
class FirstBatchTwice(DeviceFault):
    """``prefetch`` returns the first batch twice."""

    def prefetch(self, batches: Iterable[Any], size: int) -> Iterable[Any]:
        return self.inner.prefetch(self._doubled(batches), size)

    def _doubled(self, batches: Iterable[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            yield batch
            if not number:
                yield batch


@fault("test_custom_functions_get_the_dtype_that_they_ask_for")
class CustomFunctionsUncast(Backend):
    """A custom function's inputs stay as they are."""

    @classmethod
    def custom_function(cls, target: Any, cast_inputs: str | None) -> Any:
        return super().custom_function(target, None)


@fault("test_custom_functions_with_named_inputs")
class NamedInputsUncast(Backend):
    """A custom function's inputs that are given by name stay as they are."""

    @classmethod
    def custom_function(cls, target: Any, cast_inputs: str | None) -> Any:
        wrap = super().custom_function

        def call(*args: Any, **kwargs: Any) -> Any:
            return wrap(lambda *cast: target(*cast, **kwargs), cast_inputs)(*args)

        return call


@fault("test_the_plan_holds_what_the_backend_does")
class PlanIsEmpty(Backend):
    """``explain`` has nothing to say."""

    def explain(self) -> list[PlanRow]:
        return []


@fault("test_weights_come_back", "test_weights_are_the_parameters", needs="float32_weights")
class WeightsNotWritten(WeightsFault):
    """``Weights.write`` does nothing."""

    def write(self, model: Any, weights: Mapping[str, Any]) -> None:
        """Forgotten."""


@fault("test_weights_come_back", "test_weights_are_the_parameters", needs="float32_weights")
class WeightsReadInHalf(WeightsFault):
    """``Weights.read`` rounds to float16."""

    def read(self, model: Any) -> dict[str, Any]:
        return {name: value.astype(np.float16).astype(np.float32) for name, value in self.inner.read(model).items()}


@fault("test_weights_come_back", "test_weights_are_the_parameters", needs="float32_weights")
class OneWeightLeftOut(WeightsFault):
    """``Weights.read`` leaves the last weight out."""

    def read(self, model: Any) -> dict[str, Any]:
        return dict(list(self.inner.read(model).items())[:-1])


class _OptimizerState(WeightsFault):
    """A backend that reads no states of optimizers (None) is left alone."""

    def read_optimizer(self, optimizer: Any, models: Sequence[Any]) -> dict[str, Any] | None:
        state = self.inner.read_optimizer(optimizer, models)
        return None if state is None else {name: value for name, value in state.items() if self._keeps(value)}

    def _keeps(self, value: Any) -> bool:
        return True


@fault("test_training_goes_on_bit_for_bit", needs="float32_weights")
class OptimizerStateNotWritten(_OptimizerState):
    """``Weights.write_optimizer`` does nothing."""

    def write_optimizer(self, optimizer: Any, models: Sequence[Any], state: Mapping[str, Any]) -> None:
        """Forgotten."""


@fault("test_training_goes_on_bit_for_bit", needs="float32_weights")
class OptimizerCountsLost(_OptimizerState):
    """``Weights.read_optimizer`` leaves out what is a single number: counts of updates."""

    def _keeps(self, value: Any) -> bool:
        return np.ndim(value) > 0


@fault("test_training_goes_on_bit_for_bit", needs="float32_weights")
class OptimizerMomentsLost(_OptimizerState):
    """``Weights.read_optimizer`` leaves out the arrays: moments."""

    def _keeps(self, value: Any) -> bool:
        return np.ndim(value) == 0


@fault("test_that_of_another_model_is_refused", needs="float32_weights")
class OptimizerStateNotChecked(WeightsFault):
    """``Weights.check_optimizer`` takes everything."""

    def check_optimizer(self, optimizer: Any, models: Sequence[Any], state: Mapping[str, Any]) -> None:
        """Forgotten."""


@fault("test_a_copy_outlives_its_session_and_the_model_trains_on", needs="convert_model")
class ConvertedInPlace(ConverterFault):
    """``Converter.convert`` returns the model itself."""

    def convert(self, model: Any, inputs: Sequence[Any], policy: Policy) -> Any:
        self.inner.convert(model, inputs, policy)
        return model


@fault("test_sizes_that_fit_no_tile_are_named_with_the_padded_size", needs="shape_advice")
class ShapesNotSeen(LayerShapesFault):
    """``matmul_shapes`` sees no layer."""

    def matmul_shapes(self, models: Sequence[Any]) -> list[MatmulShape]:
        return []
