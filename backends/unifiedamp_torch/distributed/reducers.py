"""Making the reducer of ``DistributedDataParallel`` anew: parameters were cast or moved, or another stream captures."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

from unifiedamp.backend import errors

from .wrapped import replicated


def why_kept(model: DistributedDataParallel) -> str:
    """Return why a model's reducer cannot be made anew; empty where it can."""
    if vars(model).get("mixed_precision") is not None:
        return "DistributedDataParallel(mixed_precision=...) casts parameters on a separate stream"
    if model.process_group is not torch.distributed.group.WORLD:
        return "DistributedDataParallel(process_group=...) can be made anew with the default group alone"
    return ""


def renew_reducers(model: torch.nn.Module) -> None:
    """Make the reducers of a model anew, whose parameters have another dtype, device or layout: autograd then runs the
    old ones' hooks no longer, and no gradient would be reduced.

    Raises:
        PrepareError: one cannot be made anew.
    """
    for each in replicated([model]):
        why = why_kept(each)
        if why:
            raise errors.PrepareError(
                f"amp.prepare: parameters of {type(each.module).__name__} change their dtype or device after it was "
                f"wrapped, and {why}: call model.to(...) with the policy's param_dtype and the session's device before "
                "DistributedDataParallel(model)"
            )
        make_reducer(each)


def make_reducer(model: DistributedDataParallel) -> None:
    """Make the reducer anew, as ``DistributedDataParallel`` does when it is unpickled; its hooks are kept."""
    hooks = list(vars(model).get("_comm_hooks", ()))
    state = model.__getstate__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    vars(model).update(reducer=None, logger=None)  # frees what autograd holds for it
    model.__setstate__({**state, "_comm_hooks": []})  # type: ignore[no-untyped-call]  # likewise
    for hook, hook_state in hooks:
        model.register_comm_hook(hook_state, hook)
