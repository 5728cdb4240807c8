"""``Amp(reduce_dtype=...)`` on models that ``torch.distributed`` holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from unifiedamp.backend import SessionSpec, errors

from .wrapped import replicated, sharded, sharding_policies, world_size

SUMS = ("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook")
"""Torch's own comm hooks that sum over all ranks."""


def check_reduction(models: Sequence[torch.nn.Module], spec: SessionSpec) -> None:
    """Refuse models that reduce in another dtype than the session's; warn where nothing is reduced.

    Raises:
        PrepareError: a comm hook of the user's, or a ``MixedPrecisionPolicy`` with another dtype.
        UnsupportedError: a comm hook that keeps parts of scaled gradients, under a loss scale.
    """
    for each in replicated(models) if spec.loss_scale.enabled else ():
        refuse_feedback(each)
    if spec.reduce_dtype is None or world_size() == 1:
        return
    for model in models:
        for each in replicated([model]):
            _check_hooks(each, spec.reduce_dtype)
        _check_policies(model, spec.reduce_dtype)
        if not sharded([model]) and not any(True for _ in replicated([model])):
            spec.warn(
                f"reduce_dtype={spec.reduce_dtype!r} has no effect on {type(model).__name__}: neither "
                "DistributedDataParallel nor fully_shard reduces its gradients",
                errors.PolicyWarning,
            )


def _check_hooks(model: DistributedDataParallel, dtype: str) -> None:
    if vars(model).get("mixed_precision") is not None:
        raise errors.PrepareError(
            f"reduce_dtype={dtype!r}: DistributedDataParallel(mixed_precision=...) has its own reduce dtype; create "
            "it without mixed_precision, and amp.autocast computes in low precision"
        )
    hooks = vars(model).get("_comm_hooks", ())
    if hooks and not _is_hook_for(hooks, dtype):
        raise errors.PrepareError(
            f"reduce_dtype={dtype!r}: this DistributedDataParallel has the comm hook {_name(hooks[0][0])}, and torch "
            "takes one; make the session without reduce_dtype to keep the hook, or wrap the model without it"
        )


def _name(hook: Any) -> str:
    return getattr(hook, "__qualname__", type(hook).__qualname__)


def hook_name(model: DistributedDataParallel) -> str:
    """Return the name of the comm hook by which a model reduces; empty without one."""
    hooks = vars(model).get("_comm_hooks", ())
    return _name(hooks[0][0]) if hooks else ""


def gives_ranks_the_same(model: DistributedDataParallel) -> bool:
    """Return whether a model sums gradients over all ranks; a comm hook of the user's need not (local SGD)."""
    hooks = vars(model).get("_comm_hooks", ())
    if not hooks:
        return True
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    from .comm_hook import reduce_in

    return any(hooks[0][0] is each for each in (reduce_in, *(getattr(default_hooks, name) for name in SUMS)))


def refuse_feedback(model: DistributedDataParallel) -> None:
    """Refuse PowerSGD's error feedback under a loss scale.

    It adds the error of one step's scaled gradients to those of the next, which may have another scale; and the inf of
    an overflow would stay in it for good.

    Raises:
        UnsupportedError: the model's comm hook has error feedback or a warm start.
    """
    state = next((state for _, state in vars(model).get("_comm_hooks", ())), None)
    if getattr(state, "use_error_feedback", False) or getattr(state, "warm_start", False):
        raise errors.UnsupportedError(
            f"DistributedDataParallel: the comm hook {hook_name(model)} keeps what it computes from scaled gradients "
            "for later steps, also the inf of an overflow; train without a loss scale (mixed_bfloat16), or give the "
            f"hook {type(state).__name__}(..., use_error_feedback=False, warm_start=False)"
        )


def _is_hook_for(hooks: Sequence[tuple[Any, Any]], dtype: str) -> bool:
    from .comm_hook import reduce_in

    hook, state = hooks[0]
    return hook is reduce_in and state.dtype == getattr(torch, dtype)


def _check_policies(model: torch.nn.Module, dtype: str) -> None:
    for module, policy in sharding_policies(model):
        reduced = policy.reduce_dtype or policy.param_dtype or _dtype_of(module)
        if reduced != getattr(torch, dtype):
            raise errors.PrepareError(
                f"reduce_dtype={dtype!r}: {type(module).__name__} was sharded to reduce in "
                f"{str(reduced).removeprefix('torch.')}; shard it with fully_shard(module, mp_policy=amp.mp_policy())"
            )


def _dtype_of(module: torch.nn.Module) -> torch.dtype:
    return next((param.dtype for param in module.parameters()), torch.float32)


def reduce_gradients_in(model: torch.nn.Module, spec: SessionSpec) -> None:
    """Make the model's ``DistributedDataParallel`` sum gradients in the session's ``reduce_dtype``. Idempotent."""
    if spec.reduce_dtype is None or world_size() == 1:
        return
    from .comm_hook import ReduceIn, reduce_in

    for each in replicated([model]):
        if not vars(each).get("_comm_hooks", ()):
            each.register_comm_hook(ReduceIn(getattr(torch, spec.reduce_dtype), each.process_group), reduce_in)
