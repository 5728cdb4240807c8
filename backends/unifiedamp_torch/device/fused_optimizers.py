"""Optimizers that update many parameters in one kernel: which can, and switching them over."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container

import torch

from .kinds import traits
from .placement import match_state, steps_to_cpu, steps_to_device

_FLAGS = ("_step_supports_amp_scaling", "_need_device_dtype_check_for_fused")
"""Attributes that an optimizer made with ``fused=True`` sets on itself."""


def sparse_weights(model: torch.nn.Module) -> set[int]:
    """Return the ids of the parameters that get sparse gradients, which no fused kernel takes."""
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    return {id(layer.weight) for layer in model.modules() if isinstance(layer, kinds) and layer.sparse}


def why_not_fused(optimizer: torch.optim.Optimizer, sparse: Container[int] = ()) -> str:
    """Return why an optimizer has no fused form for its parameters; "" where it has.

    Args:
        optimizer: the optimizer.
        sparse: see :func:`sparse_weights`.
    """
    name = type(optimizer).__name__
    if "fused" not in inspect.signature(type(optimizer).__init__).parameters:
        return f"{name} has no fused form"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return f"this {name} is differentiable"
    if any(id(param) in sparse for group in optimizer.param_groups for param in group["params"]):
        return "it has embeddings with sparse=True, and fused kernels take no sparse gradients"
    reasons = (_rejection_reason(name, param) for group in optimizer.param_groups for param in group["params"])
    return next((reason for reason in reasons if reason), "")


def _rejection_reason(name: str, param: torch.Tensor) -> str:
    kind = traits(param.device)
    if not torch.is_floating_point(param):
        return f"it has parameters of dtype {param.dtype}"
    if name in kind.fused_float32_only and param.dtype in (torch.float16, torch.bfloat16):
        return f"torch's fused {name} on a CPU leaves parameters of dtype {param.dtype} as they are"
    if name in kind.unfused_optimizers or (kind.fused_optimizers is not None and name not in kind.fused_optimizers):
        return f"{name} is not fused on {param.device.type} by torch {torch.__version__}"
    return ""


def is_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether all groups of an optimizer are fused."""
    return all(group.get("fused") for group in optimizer.param_groups)


def fuse(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Switch an optimizer to its fused form, also after loading a checkpoint; return what undoes it."""
    kept = [{name: group.get(name) for name in ("fused", "foreach")} for group in optimizer.param_groups]
    flags = {name: vars(optimizer)[name] for name in _FLAGS if name in vars(optimizer)}
    _set_fused(optimizer)
    match_state(optimizer)
    hook = optimizer.register_load_state_dict_post_hook(_set_fused)

    def undo() -> None:
        hook.remove()
        # By order and not by identity: loading a checkpoint replaces the groups.
        for group, before in zip(optimizer.param_groups, kept, strict=False):
            group.update(before)
        for name in _FLAGS:
            vars(optimizer).pop(name, None)
        vars(optimizer).update(flags)
        for group in optimizer.param_groups:
            if not group.get("fused") and not group.get("capturable"):
                steps_to_cpu(optimizer, group["params"])

    return undo


def _set_fused(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group.update(fused=True, foreach=False)
    vars(optimizer).update(dict.fromkeys(_FLAGS, True))
    steps_to_device(optimizer)
