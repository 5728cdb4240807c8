"""The role that copies a module for inference, with parameters in few bits and without a session."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

from unifiedamp.backend import Converter, Policy, errors

from ..device.selection import dtype_support
from ..layer_paths import modules_by_path
from ..precision import layers
from ..precision.casts import DTYPES, InputCast, OutputCast, cast


class CastForward(layers.Forward):
    """A module's ``forward`` with inputs and outputs cast; no region, so that exporting sees casts and nothing else.

    Args:
        module: whose forward is replaced on the instance.
        inputs, outputs: dtypes that floating-point tensors are cast to.
    """

    def __init__(self, module: torch.nn.Module, inputs: torch.dtype, outputs: torch.dtype) -> None:
        super().__init__(module)
        self._inputs, self._outputs = inputs, outputs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer."""
        return cast(self.plain(*cast(args, self._inputs), **cast(kwargs, self._inputs)), self._outputs)


class TorchConverter(Converter):
    """Copies models.

    Args:
        true_weights: returns a parameter's true weights in float32.
    """

    means = "a deep copy with parameters cast"

    def __init__(self, true_weights: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._true_weights = true_weights

    def convert(self, model: torch.nn.Module, inputs: Sequence[Any], policy: Policy) -> torch.nn.Module:
        return convert_model(model, inputs, policy, self._true_weights)


def convert_model(
    model: torch.nn.Module, inputs: Sequence[Any], policy: Policy, true: Callable[[torch.Tensor], torch.Tensor]
) -> torch.nn.Module:
    """Return the copy, in evaluation mode, with parameters that need no gradient.

    Args:
        model: a module, prepared or not; ``torch.compile``'s wrapper is left out of the copy.
        inputs: what the copy is run on once; without any it is not run.
        policy: computes in float16 or bfloat16.
        true: returns a parameter's true weights in float32.

    Raises:
        PolicyNotSupportedError: the dtype does not run where the model lies.
        UnsupportedError: the policy has op overrides, or the model cannot be copied or run in the dtype.
    """
    _check(model, policy)
    model = getattr(model, "_orig_mod", model)
    try:
        made = copy.deepcopy(model)
    except Exception as error:
        raise errors.UnsupportedError(f"amp.convert_model: {type(model).__name__} cannot be copied: {error}") from error
    _strip(made)
    for param, own in zip(made.parameters(), model.parameters(), strict=True):
        if own.is_floating_point() and own.dtype in DTYPES.values():
            param.data = true(own).clone()
    _narrow(made, policy)
    made.eval().requires_grad_(False)
    if inputs:
        _try(made, inputs, policy)
    return made


def _check(model: torch.nn.Module, policy: Policy) -> None:
    if isinstance(model, torch.jit.ScriptModule):
        raise errors.UnsupportedError(
            "amp.convert_model: a torch.jit.ScriptModule keeps the casts it was scripted with; convert the plain module"
        )
    if policy.op_overrides:
        raise errors.UnsupportedError(
            f"amp.convert_model: op_overrides ({errors.first_names(policy.op_overrides)}) act in autocast regions, and "
            "the copy has none; pass a policy without them, and name layers in layer_overrides"
        )
    where = next((param.device for param in model.parameters()), torch.device("cpu"))
    for dtype in {policy.compute_dtype, *policy.layer_overrides.values()}:
        runs, _ = dtype_support(where, dtype, False)
        if not runs:
            raise errors.PolicyNotSupportedError(
                f"amp.convert_model: policy {str(policy)!r}: {dtype} does not run on {where}: {runs.reason}"
            )


def _strip(model: torch.nn.Module) -> None:
    """Remove what a session attached to the original module."""
    for module in model.modules():
        while isinstance(module.__dict__.get("forward"), layers.Forward):
            module.__dict__["forward"].remove()
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key in [key for key, hook in hooks.items() if isinstance(hook, (InputCast, OutputCast))]:
                del hooks[key]
                module._forward_pre_hooks_with_kwargs.pop(key, None)


def _narrow(model: torch.nn.Module, policy: Policy) -> None:
    low = policy.compute_dtype
    pure = policy.replace(param_dtype=low)
    dtypes = layers.layer_dtypes(model, pure)
    layers.cast_parameters(model, dtypes, pure)
    modules = modules_by_path(model)
    for path, dtype in dtypes.items():
        CastForward(modules[path], DTYPES[dtype], DTYPES[low])
    model.register_forward_pre_hook(InputCast(DTYPES[low]), with_kwargs=True)
    model.register_forward_hook(OutputCast(DTYPES[policy.output_dtype]))


def _try(model: torch.nn.Module, inputs: Sequence[Any], policy: Policy) -> None:
    try:
        with torch.no_grad():
            model(*inputs)
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        raise errors.UnsupportedError(
            f"amp.convert_model: the copy of {type(model).__name__} does not run in {policy.compute_dtype}: {reason}; "
            "layer_overrides can keep a layer in float32"
        ) from error
