"""Regions that are not entered, not left, or entered as others."""

# ruff: noqa: D102 (what each method means, Backend says; what is wrong with it, its class)

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from unifiedamp.backend import Backend, Policy, SessionSpec

from .registry import fault

FOUND = ("test_state_is_as_found", "test_regions_nest")


class _Leaks(Backend):
    """Holds what it entered, so that no garbage collection leaves it."""

    def __init__(self, spec: SessionSpec) -> None:
        super().__init__(spec)
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
class AutocastDisabled(Backend):
    """Autocast regions are entered as disabled ones."""

    def autocast(self, enabled: bool, policy: Policy | None) -> AbstractContextManager[Any]:
        return super().autocast(False, policy)


@fault("test_disabled_regions_nest", *FOUND)
class AutocastAlwaysEnabled(Backend):
    """``autocast(enabled=False)`` is an enabled region."""

    def autocast(self, enabled: bool, policy: Policy | None) -> AbstractContextManager[Any]:
        return super().autocast(True, policy)


@fault("test_a_region_of_another_policy", "test_two_policies_in_one_process", *FOUND)
class PolicyOfTheRegionIgnored(Backend):
    """``autocast(policy=...)`` runs under the session's policy."""

    def autocast(self, enabled: bool, policy: Policy | None) -> AbstractContextManager[Any]:
        return super().autocast(enabled, None)


@fault(*FOUND)
class AutocastNotLeft(_Leaks):
    """An autocast region is entered and never left."""

    def autocast(self, enabled: bool, policy: Policy | None) -> AbstractContextManager[Any]:
        return self._leaking(super().autocast(enabled, policy))


@fault(*FOUND)
class AutocastNotLeftOnErrors(_Leaks):
    """An autocast region that an exception passes is not left."""

    def autocast(self, enabled: bool, policy: Policy | None) -> AbstractContextManager[Any]:
        return self._leaking_on_errors(super().autocast(enabled, policy))


@fault("test_context_form_and_closure_form_mean_the_same", "test_mixed_rounds_to_bfloat16_and_answers_float32")
class ClosureOutsideThePolicy(Backend):
    """``backward`` computes the loss in float32."""

    def backward(self, closure: Callable[[], Any], optimizers: Sequence[Any]) -> Any:
        def outside() -> Any:
            with self.autocast(False, None):
                return closure()

        return super().backward(outside, optimizers)


@fault("test_no_gradients_come_of_inference", "test_batch_norm_moves_in_training_and_rests_in_inference")
class InferenceRecordsGradients(Backend):
    """``inference`` is a training region."""

    def inference(self, models: Sequence[Any]) -> AbstractContextManager[Any]:
        return self.autocast(True, None)


@fault("test_batch_norm_moves_in_training_and_rests_in_inference")
class InferenceTrains(Backend):
    """``inference`` is a region for training."""

    def inference(self, models: Sequence[Any]) -> AbstractContextManager[Any]:
        return super().autocast(True, None)


@fault(*FOUND, "test_batch_norm_moves_in_training_and_rests_in_inference")
class InferenceNotLeft(_Leaks):
    """An inference region is entered and never left."""

    def inference(self, models: Sequence[Any]) -> AbstractContextManager[Any]:
        return self._leaking(super().inference(models))


@fault(*FOUND)
class InferenceNotLeftOnErrors(_Leaks):
    """An inference region that an exception passes is not left."""

    def inference(self, models: Sequence[Any]) -> AbstractContextManager[Any]:
        return self._leaking_on_errors(super().inference(models))


@fault(*FOUND)
class ScopeNotLeft(_Leaks):
    """The creation scope is entered and never left."""

    def scope(self) -> AbstractContextManager[None]:
        return self._leaking(super().scope())


@fault(*FOUND)
class ScopeNotLeftOnErrors(_Leaks):
    """The creation scope that an exception passes is not left."""

    def scope(self) -> AbstractContextManager[None]:
        return self._leaking_on_errors(super().scope())


@fault("test_parameters_stay_float32_and_learn")
class ScopeNotEntered(Backend):
    """Models are made as they would be without the scope."""

    def scope(self) -> AbstractContextManager[None]:
        return nullcontext()
