"""What ``prepare`` refuses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from unifiedamp.backend import Policy, SessionSpec, errors

from ..device.kinds import traits
from ..distributed.wrapped import wrapped_by
from ..layer_paths import ParamNames, plain_name
from .gradients import parameters

Optimizer = torch.optim.Optimizer
_LOW = (torch.float16, torch.bfloat16)


def check_models(models: Sequence[torch.nn.Module]) -> None:
    """Refuse scripted modules, and those of FSDP1.

    Raises:
        PrepareError: always for one of them.
    """
    for model in models:
        if isinstance(model, torch.jit.ScriptModule):
            raise errors.PrepareError(
                "amp.prepare: a torch.jit.ScriptModule keeps the casts it was scripted with; prepare the plain module"
            )
        if wrapped_by([model], "FullyShardedDataParallel"):
            raise errors.PrepareError(
                f"amp.prepare: {type(model).__name__} is sharded by FullyShardedDataParallel (FSDP1), whose flattened "
                "parameters no optimizer step or norm of this session is made for; use "
                "torch.distributed.fsdp.fully_shard (FSDP2), with mp_policy=amp.mp_policy()"
            )


def check_optimizers(optimizers: Sequence[Any]) -> None:
    """Refuse what ``amp.step`` cannot step.

    Raises:
        WrongObjectError: not a ``torch.optim.Optimizer``.
        PrepareError: its ``step`` needs a closure, or it has no hooks.
    """
    for optimizer in optimizers:
        name = type(optimizer).__name__
        if not isinstance(optimizer, Optimizer):
            raise errors.WrongObjectError(
                f"amp.prepare: expected torch.nn.Module and torch.optim.Optimizer objects, got {name}{_hint(optimizer)}"
            )
        if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
            inner = next((key for key, value in vars(optimizer).items() if isinstance(value, Optimizer)), "")
            raise errors.PrepareError(
                f"amp.prepare: {name} does not call torch.optim.Optimizer.__init__, so that torch runs no hooks at its "
                "steps, which the session needs; "
                + (f"prepare the optimizer that it wraps, its attribute {inner!r}, and do what {name} adds after "
                   "amp.step(optimizer)" if inner else f"call super().__init__(params, defaults) in {name}.__init__")
            )  # fmt: skip
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if isinstance(optimizer, torch.optim.LBFGS) or (closure and closure.default is inspect.Parameter.empty):
            raise errors.PrepareError(
                f"amp.prepare: {name}.step needs a closure that evaluates the loss several times per step, and no loss "
                "scale or skipped step has a meaning there; use an optimizer whose step takes no closure"
            )


def _hint(given: object) -> str:
    """Return what to do with an object that is often passed for one to prepare."""
    if isinstance(given, (list, tuple, dict)):
        return "; pass each by itself, as in amp.prepare(*models, *optimizers)"
    if hasattr(given, "step") and hasattr(given, "optimizer"):
        return "; a scheduler needs no preparing: call amp.step(optimizer, scheduler)"
    return ""


def check_trainable(optimizers: Sequence[Optimizer], name_of: Callable[[torch.Tensor], str]) -> None:
    """Refuse to train tensors without values, and those that autograd cannot follow.

    Raises:
        PrepareError: naming the first parameter.
    """
    for optimizer in optimizers:
        for param in parameters(optimizer):
            if param.is_meta:
                raise errors.PrepareError(
                    f"amp.prepare: {name_of(param)!r} of {type(optimizer).__name__} is on the meta device and has no "
                    "values: call model.to_empty(device=...) and initialize or load the weights, then make the "
                    "optimizer and prepare both"
                )
            if not is_lazy(param) and param.is_inference():
                raise errors.PrepareError(
                    f"amp.prepare: {name_of(param)!r} of {type(optimizer).__name__} was made under "
                    "torch.inference_mode() and cannot be trained; make the model outside of it"
                )


def check_owned(
    optimizers: Sequence[Optimizer], names: ParamNames, model_param: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Refuse an optimizer over parameters of no prepared model.

    Args:
        optimizers: the optimizers.
        names: of the prepared models' parameters.
        model_param: returns the model's parameter of a master weight, and any other parameter unchanged.

    Raises:
        PrepareError: with the shapes of the first ones, and the likely reason.
    """
    for optimizer in optimizers:
        unowned = [param for param in parameters(optimizer) if model_param(param) not in names]
        if unowned:
            total = sum(1 for _ in parameters(optimizer))
            shapes = errors.first_names(f"{tuple(param.shape)} {param.dtype}" for param in unowned)
            raise errors.PrepareError(
                f"amp.prepare: {len(unowned)} of the {total} parameters of {type(optimizer).__name__} belong to no "
                f"prepared model (shapes: {shapes}); make the optimizer from the parameters of the model you prepare, "
                "and pass that model too; put tensors of your own into a module, as by torch.nn.ParameterList([tensor])"
            )


def stay_float32(policy: Policy, scaling: bool) -> bool:
    """Return whether trainable parameters must be float32 where there are no master weights."""
    return scaling or policy.param_dtype == "float32"


def check_fused(optimizers: Sequence[Optimizer], params: str, device_type: str) -> None:
    """Refuse an optimizer whose fused kernel leaves 16-bit parameters as they are, without a word.

    Args:
        optimizers: the optimizers.
        params: dtype of the parameters that they update.
        device_type: "cpu", "cuda", ….

    Raises:
        PrepareError: naming the optimizer.
    """
    for optimizer in optimizers if params != "float32" else ():
        name = type(optimizer).__name__
        fused = any(group.get("fused") for group in optimizer.param_groups)
        if fused and name in traits(device_type).fused_float32_only:
            raise errors.PrepareError(
                f"amp.prepare: torch's fused {name} on {device_type!r} does not update {params} parameters (torch "
                f"{torch.__version__}): make it with fused=False, or give the session master_weights=True"
            )


def check_dtypes(models: Sequence[torch.nn.Module], policy: Policy, scaling: bool, masters: bool = False) -> None:
    """Refuse trainable 16-bit parameters where float32 ones are needed and there are no ``masters``.

    Raises:
        ParamDtypeError: naming the first five.
    """
    if masters or not stay_float32(policy, scaling):
        return
    bad = {
        plain_name(name): param.dtype
        for model in models
        for name, param in model.named_parameters()
        if param.requires_grad and param.dtype in _LOW
    }
    if not bad:
        return
    dtype = str(next(iter(bad.values()))).removeprefix("torch.")
    why = "under a loss scaler" if scaling else f"under policy {policy.name or str(policy)!r}"
    raise errors.ParamDtypeError(
        f"amp.prepare: {len(bad)} trainable parameters are {dtype} (first: {errors.first_names(bad)}); {why} "
        f"parameters stay float32 and autocast makes the {policy.compute_dtype} copies: load the model in float32 "
        f"(model.float()), or use policy {dtype!r}"
    )


def wide_parameters(models: Iterable[torch.nn.Module]) -> tuple[list[str], int]:
    """Return the names of the parameters in float64, and the number of all floating-point parameters."""
    named = [(name, param.dtype) for model in models for name, param in model.named_parameters()]
    floating = [(name, dtype) for name, dtype in named if dtype.is_floating_point]
    return [plain_name(name) for name, dtype in floating if dtype is torch.float64], len(floating)


def warn_float64(models: Sequence[torch.nn.Module], spec: SessionSpec) -> None:
    """Warn of models in float64 under a policy of fewer bits, which autocast leaves as they are.

    Single layers in float64 are left so on purpose, and ``amp.explain()`` lists them.
    """
    low = [policy for policy in spec.policies if policy.compute_dtype != "float32" or policy.layer_overrides]
    for model in models if low else ():
        wide, count = wide_parameters([model])
        if wide and len(wide) == count:
            spec.warn(
                f"amp.prepare: all {count} parameters of {type(model).__name__} are float64, and policy "
                f"{str(low[0])!r} has no effect on them: autocast and the policy's casts leave float64 as it is, so "
                "the model computes in float64; call model.float() before you make the optimizer",
                errors.PolicyWarning,
            )
