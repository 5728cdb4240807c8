"""Regions that are not entered, not left, or entered as others."""

# ruff: noqa: D102 (the role says what each method means, the class what is wrong with it)

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from unifiedamp.backend import Backend, Policy

from .registry import PrecisionFault, TrainingFault, fault

FOUND = ("test_state_is_as_found", "test_regions_nest")


class _Leaks(PrecisionFault):
    """Holds what it entered, so that no garbage collection leaves it."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._left_open: list[AbstractContextManager[Any]] = []

    @contextmanager
    def _leaking(self, region: AbstractContextManager[Any]) -> Iterator[Any]:
        self._left_open.append(region)
        yield region.__enter__()

    @contextmanager
    def _leaking_on_errors(self, region: AbstractContextManager[Any]) -> Iterator[Any]:
        self._left_open.append(region)
        yield region.__enter__()
        region.__exit__(None, None, None)


@fault("test_mixed_rounds_to_bfloat16_and_answers_float32", "test_what_a_policy_is_for_runs_in_the_compute_dtype")
class AutocastDisabled(PrecisionFault):
    """Autocast regions are entered as disabled ones."""

    def autocast(self, enabled: bool, policy: Policy | None) -> AbstractContextManager[Any]:
        return self.inner.autocast(False, policy)


@fault("test_disabled_regions_nest", *FOUND)
class AutocastAlwaysEnabled(PrecisionFault):
    """``autocast(enabled=False)`` is an enabled region."""

    def autocast(self, enabled: bool, policy: Policy | None) -> AbstractContextManager[Any]:
        return self.inner.autocast(True, policy)


@fault("test_a_region_of_another_policy", "test_two_policies_in_one_process", *FOUND)
class PolicyOfTheRegionIgnored(PrecisionFault):
    """``autocast(policy=...)`` runs under the session's policy."""

    def autocast(self, enabled: bool, policy: Policy | None) -> AbstractContextManager[Any]:
        return self.inner.autocast(enabled, None)


@fault(*FOUND)
class AutocastNotLeft(_Leaks):
    """An autocast region is entered and never left."""

    def autocast(self, enabled: bool, policy: Policy | None) -> AbstractContextManager[Any]:
        return self._leaking(self.inner.autocast(enabled, policy))


@fault(*FOUND)
class AutocastNotLeftOnErrors(_Leaks):
    """An autocast region that an exception passes is not left."""

    def autocast(self, enabled: bool, policy: Policy | None) -> AbstractContextManager[Any]:
        return self._leaking_on_errors(self.inner.autocast(enabled, policy))


@fault("test_context_form_and_closure_form_mean_the_same", "test_mixed_rounds_to_bfloat16_and_answers_float32")
class ClosureOutsideThePolicy(TrainingFault):
    """``backward`` computes the loss in float32."""

    def backward(self, closure: Callable[[], Any], optimizers: Sequence[Any]) -> Any:
        def outside() -> Any:
            with self.backend.precision.autocast(False, None):
                return closure()

        return self.inner.backward(outside, optimizers)


@fault("test_no_gradients_come_of_inference", "test_batch_norm_moves_in_training_and_rests_in_inference")
class InferenceRecordsGradients(PrecisionFault):
    """``inference`` is a training region."""

    def inference(self, models: Sequence[Any]) -> AbstractContextManager[Any]:
        return self.inner.autocast(True, None)


@fault("test_batch_norm_moves_in_training_and_rests_in_inference")
class InferenceTrains(PrecisionFault):
    """``inference`` leaves models in training mode."""

    def inference(self, models: Sequence[Any]) -> AbstractContextManager[Any]:
        return self.inner.inference(())


@fault(*FOUND, "test_batch_norm_moves_in_training_and_rests_in_inference")
class InferenceNotLeft(_Leaks):
    """An inference region is entered and never left."""

    def inference(self, models: Sequence[Any]) -> AbstractContextManager[Any]:
        return self._leaking(self.inner.inference(models))


@fault(*FOUND)
class InferenceNotLeftOnErrors(_Leaks):
    """An inference region that an exception passes is not left."""

    def inference(self, models: Sequence[Any]) -> AbstractContextManager[Any]:
        return self._leaking_on_errors(self.inner.inference(models))


@fault(*FOUND)
class ScopeNotLeft(_Leaks):
    """The creation scope is entered and never left."""

    def scope(self) -> AbstractContextManager[None]:
        return self._leaking(self.inner.scope())


@fault(*FOUND)
class ScopeNotLeftOnErrors(_Leaks):
    """The creation scope that an exception passes is not left."""

    def scope(self) -> AbstractContextManager[None]:
        return self._leaking_on_errors(self.inner.scope())


@fault("test_parameters_stay_float32_and_learn")
class ScopeNotEntered(PrecisionFault):
    """Models are made as they would be without the scope."""

    def scope(self) -> AbstractContextManager[None]:
        return nullcontext()
