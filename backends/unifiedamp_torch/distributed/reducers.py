"""Making the reducer of ``DistributedDataParallel`` anew: for another layout of its parameters, or another stream."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel


def why_kept(model: DistributedDataParallel) -> str:
    """Return why a model's reducer cannot be made anew; empty where it can."""
    if vars(model).get("mixed_precision") is not None:
        return "DistributedDataParallel(mixed_precision=...) casts parameters on a stream of its own"
    if model.process_group is not torch.distributed.group.WORLD:
        return "DistributedDataParallel(process_group=...) can be made anew with the default group alone"
    return ""


def make_reducer(model: DistributedDataParallel) -> None:
    """Make the reducer anew, as ``DistributedDataParallel`` does when it is unpickled; its hooks are kept."""
    hooks = list(vars(model).get("_comm_hooks", ()))
    state = model.__getstate__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    vars(model).update(reducer=None, logger=None)  # frees what autograd holds for it
    model.__setstate__({**state, "_comm_hooks": []})  # type: ignore[no-untyped-call]
    for hook, hook_state in hooks:
        model.register_comm_hook(hook_state, hook)
