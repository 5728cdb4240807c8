"""The models and optimizers that ``initialize`` is given: what they must be, and whose parameters are whose."""

from __future__ import annotations

from typing import Any

import torch

from unifiedamp.errors import ParamDtypeError, PrepareError, WrongObjectError, first_names

from .options import HALF, Options
from .scaler import Named

_OPTIMIZER = torch.optim.Optimizer
_PARALLEL = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)


def objects_of(models: Any, optimizers: Any) -> tuple[list[Any], list[Any]]:
    """Return the models and the optimizers, as lists.

    Raises:
        WrongObjectError: neither a module or optimizer, nor a list of them.
        ParamDtypeError: parameters have 16 bits already.
        PrepareError: a model in a parallel wrapper, an optimizer that went through ``initialize`` before.
    """
    every_model = _listed(models, torch.nn.Module, "models", "a torch.nn.Module")
    every_optimizer = [] if optimizers is None else _listed(inner(optimizers), _OPTIMIZER, "optimizers", "an optimizer")
    _check_models(every_model)
    for optimizer in every_optimizer:
        if hasattr(optimizer, "_amp_stash"):
            raise PrepareError(
                f"initialize: this {type(optimizer).__name__} went through amp.initialize before; make a new optimizer"
            )
    return every_model, every_optimizer


def inner(optimizers: Any) -> Any:
    """Return what is wrapped in a LARC, Apex's or ours; of a list, of each; everything else as it is."""
    if isinstance(optimizers, list | tuple):
        return type(optimizers)(map(inner, optimizers))
    wrapped = getattr(optimizers, "optim", None)
    return wrapped if type(optimizers).__name__ == "LARC" and isinstance(wrapped, _OPTIMIZER) else optimizers


def _listed(value: Any, kind: Any, what: str, single: str) -> list[Any]:
    many = value if isinstance(value, list) else [value]
    for each in many:
        if not isinstance(each, kind):
            raise WrongObjectError(f"initialize: {what} must be {single} or a list of them, got {type(each).__name__}")
    return list(many)


def _check_models(models: list[Any]) -> None:
    for model in models:
        if isinstance(model, _PARALLEL):
            raise PrepareError(
                f"initialize: wrap the model in {type(model).__name__} after amp.initialize, not before: pass the bare "
                "model and wrap what is returned"
            )
        half = [name for name, param in model.named_parameters() if param.dtype in HALF]
        if half:
            raise ParamDtypeError(
                f"initialize: {len(half)} parameters of {type(model).__name__} have 16 bits already (first: "
                f"{first_names(half)}); pass the float32 model, without .half(), at any opt_level"
            )


def params_of(optimizer: Any) -> list[Any]:
    """Return the parameters that an optimizer has now."""
    return [param for group in optimizer.param_groups for param in group["params"]]


def unowned_params(models: list[Any], own: list[list[Any]], options: Options) -> list[Any]:
    """Return what holds the optimizers' parameters of no model; Apex takes those, and casts none of them."""
    known = {id(param) for model in models for param in model.parameters()}
    found = {id(param): param for params in own for param in params if id(param) not in known}
    if not found or options.opt_level in ("O2", "O3"):
        return []  # there the session refuses, naming them
    return [Named({f"parameter{index}": param for index, param in enumerate(found.values())})]


def trained_by_name(models: list[Any], own: list[list[Any]], trained: list[list[Any]]) -> dict[str, Any]:
    """Return name → float32 parameter that an optimizer trains, by the name of the model's parameter behind it."""
    names: dict[int, str] = {}
    for index, model in enumerate(models):
        for name, param in model.named_parameters():
            names.setdefault(id(param), f"model{index}.{name}" if index else name)
    pairs = [pair for before, after in zip(own, trained, strict=True) for pair in zip(before, after, strict=True)]
    return {
        names.get(id(before), f"parameter{index}"): after
        for index, (before, after) in enumerate(pairs)
        if after.dtype is torch.float32
    }
