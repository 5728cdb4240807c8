"""``initialize``: from Apex's options to sessions, over the user's models and optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import unifiedamp as ua
from unifiedamp.backend import LossScale
from unifiedamp.measured import making

from . import lists
from .forward import AutocastForward
from .objects import objects_of, params_of, trained_by_name, unowned_params
from .options import DISABLED, Options, report, resolve
from .scaler import LossScaler
from .settings import check_losses, loss_scale_of, policy_of
from .state import amp_state
from .steps import Stash
from .weights import MasterState


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
        num_losses: how many loss ids, each with its own scale.
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
    given = models if optimizers is None else (models, optimizers)
    if not enabled:
        amp_state.opt_properties, amp_state.loss_scalers = DISABLED, []
        return given
    overrides = {
        "cast_model_type": cast_model_type,
        "patch_torch_functions": patch_torch_functions,
        "keep_batchnorm_fp32": keep_batchnorm_fp32,
        "master_weights": master_weights,
        "loss_scale": loss_scale,
    }
    options = resolve(opt_level, overrides)
    scale = loss_scale_of(options, min_loss_scale, max_loss_scale)
    policy = policy_of(options, cast_model_outputs)
    check_losses(num_losses)
    _start(*objects_of(models, optimizers), options, policy, [scale] * num_losses)
    return given


def _start(
    models: list[Any], optimizers: list[Any], options: Options, policy: ua.Policy, scales: Sequence[LossScale]
) -> None:
    """Turn on what the options ask for, and note it in ``amp_state`` once nothing can fail."""
    if options.patch_torch_functions:
        lists.apply()
    amp_state.say(report(options))
    scalers = _attach(models, optimizers, options, policy, scales)
    amp_state.opt_properties, amp_state.loss_scalers = options, scalers


def _attach(
    models: list[Any], optimizers: list[Any], options: Options, policy: ua.Policy, scales: Sequence[LossScale]
) -> list[LossScaler]:
    """Prepare everything in a session, and make a scaler per loss; return the scalers."""
    device = next((param.device for model in models for param in model.parameters()), torch.device("cpu"))
    masters = bool(options.master_weights) and policy.param_dtype != "float32"
    with making("casts"):
        session = ua.Amp("torch", policy=policy, loss_scale="none", device=str(device), master_weights=masters)
    policy, masters = session.policy, masters and session.policy.param_dtype != "float32"
    own = [params_of(optimizer) for optimizer in optimizers]
    session.prepare(*models, *unowned_params(models, own, options), *optimizers)
    if policy.is_mixed:
        for model in models:
            AutocastForward(model, session)
    trained = trained_by_name(models, own, [params_of(optimizer) for optimizer in optimizers])
    scalers = [LossScaler(index, scale, trained, device) for index, scale in enumerate(scales)]
    stashes = [Stash(optimizer, session, scalers, params) for optimizer, params in zip(optimizers, own, strict=True)]
    if masters:
        for model in models:
            MasterState(session, stashes).attach(model)
    return scalers
