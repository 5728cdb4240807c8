"""``initialize``: from Apex's options to sessions, over the user's models and optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import unifiedamp as ua
from unifiedamp.backend import LossScale
from unifiedamp.errors import ConfigError, ParamDtypeError, PrepareError, WrongObjectError, first_names

from .forward import AutocastForward
from .options import DISABLED, HALF, Options, report, resolve
from .scaling import LossScaler, Named
from .state import amp_state
from .steps import Stash
from .weights import MasterState

Module = torch.nn.Module
Optimizer = torch.optim.Optimizer
_NAMES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
_PARALLEL = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)


def initialize(
    models: Any,
    optimizers: Any = None,
    enabled: bool = True,
    opt_level: str = "O1",
    cast_model_type: Any = None,
    patch_torch_functions: Any = None,
    keep_batchnorm_fp32: Any = None,
    master_weights: Any = None,
    loss_scale: Any = None,
    cast_model_outputs: Any = None,
    num_losses: int = 1,
    verbosity: int = 1,
    min_loss_scale: float | None = None,
    max_loss_scale: float = 2.0**24,
) -> Any:
    """Make models and optimizers ready for an optimization level, in place.

    Args:
        models: a module or a list of modules, with float32 parameters.
        optimizers: None, an optimizer or a list of optimizers.
        enabled: False leaves everything as it is, and every other call does nothing.
        opt_level: "O0" (float32), "O1" (autocast), "O2" (16-bit parameters, float32 masters) or "O3" (16-bit).
        cast_model_type: the 16-bit dtype, ``torch.float16`` (the default) or ``torch.bfloat16``; at O1 that of casts.
        patch_torch_functions: False turns O1's casts off.
        keep_batchnorm_fp32: at O2 and O3, whether normalization layers stay float32; "True" and "False" are read too.
        master_weights: at O2 and O3, whether the optimizer trains float32 copies.
        loss_scale: "dynamic", a number, or text of a number. None: dynamic at O1 and O2, 1.0 (off) at O0 and O3.
        cast_model_outputs: dtype of the models' outputs; None is float32.
        num_losses: how many loss ids, each with a scale of its own.
        verbosity: 0 prints nothing.
        min_loss_scale: floor of a dynamic scale; None is 2**-14.
        max_loss_scale: ceiling of a dynamic scale.

    Returns:
        The models, and the optimizers unless None, each single or as a list, as given.

    Raises:
        ConfigError: an option has no meaning, or the level excludes it.
        WrongObjectError: neither a module or optimizer, nor a list of them.
        ParamDtypeError: parameters are not float32 to begin with.
        PrepareError: a model in a parallel wrapper, an optimizer that went through here before or has strange
            parameters.
    """
    amp_state.verbosity = verbosity
    if not enabled:
        amp_state.opt_properties, amp_state.loss_scalers = DISABLED, []
        return models if optimizers is None else (models, optimizers)
    overrides = {
        "cast_model_type": cast_model_type,
        "patch_torch_functions": patch_torch_functions,
        "keep_batchnorm_fp32": keep_batchnorm_fp32,
        "master_weights": master_weights,
        "loss_scale": loss_scale,
    }
    options = resolve(opt_level, overrides)
    scale = _loss_scale(options, min_loss_scale, max_loss_scale)
    policy = _policy(options, cast_model_outputs)
    if not isinstance(num_losses, int) or isinstance(num_losses, bool) or num_losses < 1:
        raise ConfigError(f"initialize: num_losses must be a whole number of at least 1, got {num_losses!r}")
    every_model = _listed(models, Module, "models", "a torch.nn.Module")
    every_optimizer = [] if optimizers is None else _listed(optimizers, Optimizer, "optimizers", "an optimizer")
    _check(every_model, every_optimizer)
    amp_state.say(report(options))
    scalers = _attach(every_model, every_optimizer, options, policy, [scale] * num_losses)
    amp_state.opt_properties, amp_state.loss_scalers = options, scalers
    return models if optimizers is None else (models, optimizers)


def _attach(
    models: list[Any], optimizers: list[Any], options: Options, policy: ua.Policy, scales: Sequence[LossScale]
) -> list[LossScaler]:
    """Prepare everything in a session, and make a scaler per loss; return the scalers."""
    device = next((param.device for model in models for param in model.parameters()), torch.device("cpu"))
    masters = bool(options.master_weights) and policy.param_dtype != "float32"
    session = ua.Amp("torch", policy=policy, loss_scale="none", device=str(device), master_weights=masters)
    own = [_params(optimizer) for optimizer in optimizers]
    session.prepare(*models, *_strays(models, own, options), *optimizers)
    if policy.is_mixed:
        for model in models:
            AutocastForward(model, session)
    trained = _trained(models, own, [_params(optimizer) for optimizer in optimizers])
    scalers = [LossScaler(index, scale, trained, device) for index, scale in enumerate(scales)]
    stashes = [Stash(optimizer, session, scalers, params) for optimizer, params in zip(optimizers, own, strict=True)]
    if masters:
        for model in models:
            MasterState(session, stashes).attach(model)
    return scalers


def _policy(options: Options, outputs: Any) -> ua.Policy:
    if outputs is not None and outputs not in _NAMES:
        raise ConfigError(
            f"initialize: cast_model_outputs must be torch.float32, float16, bfloat16 or None, got {outputs!r}"
        )
    output = _NAMES[outputs or torch.float32]
    cast = _NAMES[options.cast_model_type or torch.float32]
    if options.opt_level == "O1":
        half = cast if options.cast_model_type in HALF else "float16"
        return ua.Policy("float32", half if options.patch_torch_functions else "float32", output)
    return ua.Policy(cast, cast, output, keep_norm_float32=bool(options.keep_batchnorm_fp32))


def _loss_scale(options: Options, floor: float | None, ceiling: float) -> LossScale:
    if options.loss_scale == 1.0:
        return ua.NoLossScale()
    if options.loss_scale != "dynamic":
        return ua.StaticLossScale(float(options.loss_scale))
    low = ua.DynamicLossScale().min_scale if floor is None else floor
    if not 0 < low <= ceiling:
        raise ConfigError(
            f"initialize: min_loss_scale ({floor!r}) must be positive and not above max_loss_scale ({ceiling!r})"
        )
    return ua.DynamicLossScale(initial_scale=min(max(2.0**16, low), ceiling), min_scale=low, max_scale=ceiling)


def _listed(value: Any, kind: Any, what: str, single: str) -> list[Any]:
    many = value if isinstance(value, list) else [value]
    for each in many:
        if not isinstance(each, kind):
            raise WrongObjectError(f"initialize: {what} must be {single} or a list of them, got {type(each).__name__}")
    return list(many)


def _check(models: list[Any], optimizers: list[Any]) -> None:
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
    for optimizer in optimizers:
        if hasattr(optimizer, "_amp_stash"):
            raise PrepareError(
                f"initialize: this {type(optimizer).__name__} went through amp.initialize before; make a new optimizer"
            )


def _params(optimizer: Any) -> list[Any]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def _strays(models: list[Any], own: list[list[Any]], options: Options) -> list[Any]:
    """Return what holds the optimizers' parameters of no model; Apex takes those, and casts none of them."""
    known = {id(param) for model in models for param in model.parameters()}
    found = {id(param): param for params in own for param in params if id(param) not in known}
    if not found or options.opt_level in ("O2", "O3"):
        return []  # there the session refuses, naming them
    return [Named({f"parameter{index}": param for index, param in enumerate(found.values())})]


def _trained(models: list[Any], own: list[list[Any]], trained: list[list[Any]]) -> dict[str, Any]:
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
