"""What the roles of one session share of its steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from unifiedamp.backend import SessionSpec

from ..device.kinds import traits
from ..distributed.agreement import Agreement
from ..distributed.loaded import LoadedStates
from ..distributed.ranks import TrainingRanks
from ..distributed.step_counts import StepCounts
from ..precision.float8_state import Float8State
from .ema import MovingAverages
from .native_calls import NativeCalls
from .nonfinite import LastLoss, SkipReports
from .plain_steps import PlainSteps
from .prepared import PreparedObjects
from .scaled_steps import ScaledSteps
from .scaler import Scaler
from .skip_conditions import SkipConditions
from .steps import Steps
from .thread_flags import ThreadFlags


@dataclass(frozen=True)
class StepContext:
    """What the roles of one session share of its steps.

    Attributes:
        prepared: the models and optimizers.
        ranks: those that train together.
        agreement: compares them.
        loaded: compares the states that they load.
        native: native calls beside the session's.
        flags: what holds for the thread where a call begins.
        loss: the last unscaled loss.
        reports: on skipped steps.
        averages: of weights.
        steps: the optimizer steps.
        scaler: the loss scaler; None without loss scaling.
        float8: what float8 layers keep from one pass to the next.
        counts: the ranks' steps.
    """

    prepared: PreparedObjects
    ranks: TrainingRanks
    agreement: Agreement
    loaded: LoadedStates
    native: NativeCalls
    flags: ThreadFlags
    loss: LastLoss
    reports: SkipReports
    averages: MovingAverages
    steps: Steps
    scaler: Scaler | None
    float8: Float8State
    counts: StepCounts

    @classmethod
    def create(
        cls,
        spec: SessionSpec,
        device: torch.device,
        reads_without_sync: bool,
        ranks: TrainingRanks,
        float8_all_gather: bool = False,
    ) -> StepContext:
        """Return the context of a new session; ``reads_without_sync``: see ``Device``."""
        scaling = spec.loss_scale
        prepared, loss = PreparedObjects(spec.policy), LastLoss(wanted=scaling.enabled)
        native = NativeCalls(scaling.scale_bounds != (1, 1) or spec.accumulate_steps > 1, prepared.masters)
        reports = SkipReports(prepared.gradients, prepared.param_names, loss, reads_without_sync)
        averages = MovingAverages(prepared, device, reads_without_sync)
        agreement = Agreement(ranks, spec)
        loaded = LoadedStates(ranks, agreement, scaling.enabled)
        scaler = (
            Scaler(device, scaling, reads_without_sync, ranks, averages, agreement, loaded) if scaling.enabled else None
        )
        if scaler is not None and scaling.scale_bounds != (1, 1):
            native.unscaled = scaler.is_unscaled
        conditions = SkipConditions(device, ranks)
        steps = (
            PlainSteps(averages, conditions, reads_without_sync, agreement)
            if scaler is None
            else ScaledSteps(scaler, reads_without_sync, reports, averages, conditions)
        )
        agreement.state = steps.read
        if prepared.updates.in_use:
            steps.weight_updates = prepared.updates
        steps.float8 = float8 = Float8State(
            spec.policy,
            spec.accumulate_steps > 1,
            device,
            ranks,
            scheduled=any(p.compute_dtype == "float8" for p in spec.policies[1:]),
            gathers=float8_all_gather and len(spec.policies) == 1,
        )
        flags = ThreadFlags(device.type)
        counts = StepCounts(not traits(device).captures_graphs)
        return cls(
            prepared, ranks, agreement, loaded, native, flags, loss, reports, averages, steps, scaler, float8, counts
        )
