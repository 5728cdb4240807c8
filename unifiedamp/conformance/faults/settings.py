"""Settings of the session that a backend does not heed, or takes for others."""

from __future__ import annotations

from dataclasses import replace

from unifiedamp.backend import Backend, LossScale, Policy, SessionSpec
from unifiedamp.loss_scale import DynamicLossScale, NoLossScale

from .registry import fault
from .scaling import TRACE

BOUNDS = "test_the_scale_stops_at_its_floor_and_ceiling"


class _Scale(Backend):
    def __init__(self, spec: SessionSpec) -> None:
        scale = spec.loss_scale
        super().__init__(replace(spec, loss_scale=self._other(scale)) if isinstance(scale, DynamicLossScale) else spec)

    def _other(self, scale: DynamicLossScale) -> LossScale:
        raise NotImplementedError


@fault(TRACE)
class ScalingOff(_Scale):
    """Losses are not scaled, gradients not looked at."""

    def _other(self, scale: DynamicLossScale) -> LossScale:
        return NoLossScale()


@fault(TRACE)
class GrowsOneStepLate(_Scale):
    """The scale grows one step late."""

    def _other(self, scale: DynamicLossScale) -> LossScale:
        return replace(scale, growth_interval=scale.growth_interval + 1)


@fault("test_golden_vector", "test_the_scale_at_every_step")
class GrowsByAnotherFactor(_Scale):
    """The scale grows by the square of its factor."""

    def _other(self, scale: DynamicLossScale) -> LossScale:
        return replace(scale, growth_factor=scale.growth_factor**2)


@fault(TRACE)
class BacksOffByAnotherFactor(_Scale):
    """The scale backs off by the square of its factor."""

    def _other(self, scale: DynamicLossScale) -> LossScale:
        return replace(scale, backoff_factor=scale.backoff_factor**2)


@fault(BOUNDS)
class NoFloor(_Scale):
    """The scale falls below its floor."""

    def _other(self, scale: DynamicLossScale) -> LossScale:
        return replace(scale, min_scale=2.0**-126)


@fault(BOUNDS)
class NoCeiling(_Scale):
    """The scale grows above its ceiling."""

    def _other(self, scale: DynamicLossScale) -> LossScale:
        return replace(scale, max_scale=2.0**127)


@fault("test_hysteresis")
class NoHysteresis(_Scale):
    """The scale backs off at the first overflow."""

    def _other(self, scale: DynamicLossScale) -> LossScale:
        return replace(scale, hysteresis=1)


@fault("test_hysteresis_until_the_scale_grows")
class HysteresisResetIgnored(_Scale):
    """A finite step starts the count of hysteresis again, whatever resets it."""

    def _other(self, scale: DynamicLossScale) -> LossScale:
        return replace(scale, hysteresis_reset="good_step")


@fault(TRACE)
class AnotherInitialScale(_Scale):
    """Training starts at another scale."""

    def _other(self, scale: DynamicLossScale) -> LossScale:
        return replace(scale, initial_scale=max(scale.min_scale, scale.initial_scale / 2))


class _Policy(Backend):
    def __init__(self, spec: SessionSpec) -> None:
        super().__init__(replace(spec, policy=self._other(spec.policy)))

    def _other(self, policy: Policy) -> Policy:
        raise NotImplementedError


@fault("test_mixed_rounds_to_bfloat16_and_answers_float32")
class PolicyIgnored(_Policy):
    """Mixed policies compute in float32."""

    def _other(self, policy: Policy) -> Policy:
        mixed = policy.param_dtype == "float32" and policy.compute_dtype in ("float16", "bfloat16")
        return policy.replace(compute_dtype="float32", op_overrides={}) if mixed else policy


@fault("test_mixed_rounds_to_bfloat16_and_answers_float32")
class OutputsInTheComputeDtype(_Policy):
    """Models answer in the compute dtype."""

    def _other(self, policy: Policy) -> Policy:
        return policy.replace(output_dtype=policy.compute_dtype) if policy.compute_dtype != "float8" else policy


@fault("test_a_layer_kept_in_float32", needs="layer_overrides")
class LayerOverridesIgnored(_Policy):
    """Overrides of layers are ignored."""

    def _other(self, policy: Policy) -> Policy:
        return policy.replace(layer_overrides={})


@fault("test_an_overridden_operation_runs_in_what_was_chosen", needs="op_overrides")
class OpOverridesIgnored(_Policy):
    """Overrides of operations are ignored."""

    def _other(self, policy: Policy) -> Policy:
        return policy.replace(op_overrides={})


@fault("test_strict_refuses_what_warns", "test_under_strict_a_scale_out_of_bounds_is_refused")
class StrictIgnored(Backend):
    """Warnings stay warnings under ``strict``."""

    def __init__(self, spec: SessionSpec) -> None:
        super().__init__(replace(spec, strict=False))


@fault("test_tiny_updates_survive", needs="master_weights")
class MasterWeightsIgnored(Backend):
    """Optimizers train 16-bit parameters though float32 masters were asked for."""

    def __init__(self, spec: SessionSpec) -> None:
        super().__init__(replace(spec, master_weights=False))
