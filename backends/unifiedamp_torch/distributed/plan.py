"""The rows of ``amp.explain()`` on the ranks that train together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from unifiedamp.backend import PlanRow, SessionSpec

from .ranks import TrainingRanks
from .wrapped import replicated, sharded, world_size


def rank_rows(ranks: TrainingRanks, models: Sequence[torch.nn.Module], spec: SessionSpec) -> list[PlanRow]:
    """Return who decides together, and how gradients are reduced; nothing where there is one process.

    Args:
        ranks: those that train together.
        models: the prepared ones.
        spec: the session's.
    """
    if world_size() == 1:
        return [] if spec.reduce_dtype is None else [_alone_row(spec.reduce_dtype)]
    return [_decision_row(ranks, spec), _reduction_row(models, spec)]


def _decision_row(ranks: TrainingRanks, spec: SessionSpec) -> PlanRow:
    groups = ranks.groups
    if not groups:
        return PlanRow("ranks", "alone", "none", note="backend_options.torch.process_group is False")
    sizes = " x ".join(str(dist.get_world_size(group)) for group in groups)
    value = f"{sizes} of {world_size()} ({dist.get_backend(groups[0])})"
    if not spec.loss_scale.enabled:
        return PlanRow("ranks", value, "none", note="without loss scaling no step is skipped")
    note = "one pair of numbers per step; none where DistributedDataParallel gives all ranks the same gradients"
    return PlanRow("ranks", value, "torch.distributed.all_reduce(found_inf, MAX)", note=note)


def _alone_row(dtype: str) -> PlanRow:
    return PlanRow("gradients of ranks", dtype, "none", "no effect", "one process: nothing is summed between ranks")


def _reduction_row(models: Sequence[torch.nn.Module], spec: SessionSpec) -> PlanRow:
    if sharded(models):
        native, note = "fully_shard: reduce-scatter", "in the reduce_dtype of its mp_policy, after each backward pass"
    elif any(True for _ in replicated(models)):
        native, note = "DistributedDataParallel: all-reduce", "in the dtype of the gradients, or of its comm hook"
        if spec.reduce_dtype is not None:
            native, note = f"{native}, register_comm_hook", "gradients are cast for the sum, and back"
        if spec.accumulate_steps > 1 and not spec.master_weights:
            note += "; once per window (no_sync)"
    else:
        native, note = "none", "no model is wrapped: reduce gradients before amp.step, or wrap the model"
    value = "reduced" if spec.reduce_dtype is None else f"reduced in {spec.reduce_dtype}"
    return PlanRow("gradients of ranks", value if native != "none" else "as they are", native, note=note)
