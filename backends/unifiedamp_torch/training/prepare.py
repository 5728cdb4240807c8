"""Which parameter belongs to which model and optimizer, and the checks that ``prepare`` makes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from unifiedamp.backend import Policy, errors

from .gradients import parameters

Optimizer = torch.optim.Optimizer
_LOW = (torch.float16, torch.bfloat16)


def plain_name(name: str) -> str:
    """Return a parameter's name without what torch.compile put into it."""
    return name.replace("_orig_mod.", "")


class Names:
    """Names of the parameters of all prepared models, by parameter."""

    def __init__(self, names: Mapping[int, str] | None = None, models: Sequence[torch.nn.Module] = ()) -> None:
        self._names = dict(names or {})
        # Held, so that no other parameter takes an id.
        self._models = list(models)

    def with_models(self, models: Sequence[torch.nn.Module]) -> Names:
        """Return the same with more models; a name that an earlier one has gets ``model<index>.`` before it."""
        more = Names(self._names, [*self._models, *models])
        for index, model in enumerate(models, len(self._models)):
            taken = set(more._names.values())
            for name, param in model.named_parameters():
                plain = plain_name(name)
                more._names.setdefault(id(param), plain if plain not in taken else f"model{index}.{plain}")
        return more

    def __contains__(self, param: torch.Tensor) -> bool:
        return id(param) in self._names

    def of(self, param: torch.Tensor) -> str:
        """Return a parameter's name; one that was added to the optimizer later has only its shape."""
        return self._names.get(id(param)) or f"parameter of shape {tuple(param.shape)}"


def check_models(models: Sequence[Any]) -> None:
    """Refuse what is not a module.

    Raises:
        WrongObjectError: something else.
    """
    for model in models:
        if isinstance(model, torch.jit.ScriptModule):
            raise errors.PrepareError(
                "amp.prepare: a torch.jit.ScriptModule keeps the casts it was scripted with; prepare the plain module"
            )


def check_optimizers(optimizers: Sequence[Any]) -> None:
    """Refuse what is not an optimizer that ``amp.step`` can drive.

    Raises:
        WrongObjectError: not a ``torch.optim.Optimizer``.
        PrepareError: its ``step`` needs a closure.
    """
    for optimizer in optimizers:
        name = type(optimizer).__name__
        if not isinstance(optimizer, Optimizer):
            raise errors.WrongObjectError(
                f"amp.prepare: expected torch.nn.Module and torch.optim.Optimizer objects, got {name}"
            )
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if isinstance(optimizer, torch.optim.LBFGS) or (closure and closure.default is inspect.Parameter.empty):
            raise errors.PrepareError(
                f"amp.prepare: {name}.step needs a closure that evaluates the loss several times per step, and no loss "
                "scale or skipped step has a meaning there; use an optimizer whose step takes no closure"
            )


def check_owned(
    optimizers: Sequence[Optimizer], names: Names, of_model: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Refuse an optimizer over parameters of no prepared model; ``of_model`` finds the one behind a master.

    Raises:
        PrepareError: with the shapes of the first ones, and the likely reason.
    """
    for optimizer in optimizers:
        strays = [param for param in parameters(optimizer) if of_model(param) not in names]
        if strays:
            total = sum(1 for _ in parameters(optimizer))
            shapes = errors.first_names(f"{tuple(param.shape)} {param.dtype}" for param in strays)
            raise errors.PrepareError(
                f"amp.prepare: {len(strays)} of the {total} parameters of {type(optimizer).__name__} belong to no "
                f"prepared model (shapes: {shapes}); make the optimizer from the parameters of the model you prepare, "
                "and pass that model too"
            )


def check_dtypes(models: Sequence[torch.nn.Module], policy: Policy, scaling: bool, masters: bool = False) -> None:
    """Refuse trainable half-precision parameters where float32 ones are needed and no ``masters`` will stand for them.

    Raises:
        ParamDtypeError: naming the first five.
    """
    if masters or (not scaling and policy.param_dtype != "float32"):
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
