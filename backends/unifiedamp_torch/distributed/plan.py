"""The rows of ``amp.explain()`` on the ranks that train together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from unifiedamp.backend import PlanRow, SessionSpec

from .ranks import TrainingRanks
from .reduction import hook_name
from .wrapped import replicated, sharded, sharding_policies, world_size

SHOWN = 16
"""Ranks of a group that a row lists."""


def rank_rows(ranks: TrainingRanks, models: Sequence[torch.nn.Module], spec: SessionSpec) -> list[PlanRow]:
    """Return who decides together, and how gradients are reduced; nothing where there is one process.

    Args:
        ranks: those that train together.
        models: the prepared ones.
        spec: the session's.
    """
    if world_size() == 1:
        return [] if spec.reduce_dtype is None else [_alone_row(spec.reduce_dtype)]
    return [_world_row(), *_group_rows(ranks), _decision_row(ranks, spec), *_reduction_rows(ranks, models, spec)]


def _world_row() -> PlanRow:
    native = f"torch.distributed.get_world_size() == {world_size()}"
    return PlanRow("world size", str(world_size()), native, note=f"this is rank {dist.get_rank()}")


def _group_rows(ranks: TrainingRanks) -> list[PlanRow]:
    """Return the process groups that train together, each with its ranks and the library that it communicates by."""
    rows = []
    for group in ranks.groups:
        members = dist.get_process_group_ranks(group or dist.group.WORLD)
        shown = ", ".join(map(str, members[:SHOWN])) + (", ..." if len(members) > SHOWN else "")
        whole = group is None or group is dist.group.WORLD
        native = "torch.distributed.group.WORLD" if whole else "of the model's wrapper or mesh, or process_group"
        rows.append(PlanRow("process group", f"ranks {shown}", native, note=f"{dist.get_backend_config(group)}"))
    return rows


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


def _reduction_rows(ranks: TrainingRanks, models: Sequence[torch.nn.Module], spec: SessionSpec) -> list[PlanRow]:
    """Return what is reduced and in which dtype, a row per kind of wrapper."""
    rows = []
    if sharded(models):
        once = ranks.shards_wait and spec.accumulate_steps > 1 and not spec.master_weights
        when = "once per window (set_requires_gradient_sync)" if once else "after each backward pass"
        note = f"in the reduce_dtype of its mp_policy, {when}"
        rows.append(_reduced("fully_shard: reduce-scatter", _dtypes_of_shards(models), note))
    copies = list(replicated(models))
    if copies:
        native, note = "DistributedDataParallel: all-reduce", "in the dtype of the gradients, or of its comm hook"
        if spec.reduce_dtype is not None:
            native, note = f"{native}, register_comm_hook", "gradients are cast for the sum, and back"
        if spec.accumulate_steps > 1 and not spec.master_weights:
            note += "; once per window (no_sync)"
        rows.append(_reduced(native, [spec.reduce_dtype] if spec.reduce_dtype else _dtypes_of_copies(copies), note))
    if rows:
        return rows
    note = "no model is wrapped: reduce gradients before amp.step, or wrap the model"
    return [PlanRow("gradients of ranks", "as they are", "none", note=note)]


def _reduced(native: str, dtypes: Sequence[str], note: str) -> PlanRow:
    return PlanRow("gradients of ranks", f"reduced in {', '.join(dict.fromkeys(dtypes))}", native, note=note)


def _dtypes_of_shards(models: Sequence[torch.nn.Module]) -> list[str]:
    found = [(module, policy) for model in models for module, policy in sharding_policies(model)]
    return [_name(policy.reduce_dtype or policy.param_dtype or _param_dtype(module)) for module, policy in found]


def _dtypes_of_copies(copies: Sequence[DistributedDataParallel]) -> list[str]:
    hooked = [(each, hook_name(each)) for each in copies]
    return [f"what the comm hook {hook} makes" if hook else _name(_param_dtype(each)) for each, hook in hooked]


def _param_dtype(module: torch.nn.Module) -> torch.dtype:
    return next((param.dtype for param in module.parameters() if param.requires_grad), torch.float32)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
