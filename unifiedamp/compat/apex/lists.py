"""``amp.lists``: the functions that O1 casts, by name; what a script adds before ``initialize`` is cast like them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from unifiedamp.errors import ConfigError

from .functions import register_float_function, register_half_function, register_promote_function

_HALF = {
    "functional": ["conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "linear"],
    "torch": ["addmm", "addmv", "addr", "matmul", "mm", "mv", "bmm", "baddbmm", "chain_matmul", "prelu"],
    "tensor": ["__matmul__", "matmul", "mm", "mv", "bmm", "baddbmm", "addmm", "addmv", "addr"],
}
_FLOAT = {
    "functional": ["softplus", "softmin", "log_softmax", "softmax", "gelu", "layer_norm", "group_norm",
                   "cosine_similarity", "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss"],
    "torch": ["acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log1p", "log2", "reciprocal", "rsqrt",
              "sinh", "tan", "pow", "softmax", "log_softmax", "cumprod", "cumsum", "dist", "norm", "prod", "std",
              "sum", "var"],
    "tensor": ["__pow__", "exp", "log", "pow", "prod", "sum", "norm", "softmax", "log_softmax", "cumsum"],
}  # fmt: skip
_CASTS = ["addcdiv", "addcmul", "atan2", "cross", "bilinear", "dot", "add", "div", "mul", "eq", "ge", "gt", "le", "lt"]
_MODULES = {"functional": torch.nn.functional, "torch": torch, "tensor": torch.Tensor}
_LISTS: dict[str, Callable[[Any, str], None]] = {
    "FP16_FUNCS": register_half_function,
    "FP32_FUNCS": register_float_function,
    "CASTS": register_promote_function,
}


def _overrides(name: str) -> SimpleNamespace:
    casts = [] if name == "functional" else list(_CASTS)
    return SimpleNamespace(
        MODULE=_MODULES[name], FP16_FUNCS=list(_HALF[name]), FP32_FUNCS=list(_FLOAT[name]), CASTS=casts
    )


functional_overrides, torch_overrides, tensor_overrides = map(_overrides, _MODULES)
_as_made = {name: vars(_overrides(name)) for name in _MODULES}


def apply() -> None:
    """Cast what a script has added to the lists since they were made; ``initialize`` calls it at O1.

    Raises:
        ConfigError: a name was only removed: torch's own autocast goes on casting that function.
    """
    overrides = (functional_overrides, torch_overrides, tensor_overrides)
    for (name, made), now in zip(_as_made.items(), overrides, strict=True):
        added = {each for key in _LISTS for each in set(getattr(now, key)) - set(made[key])}
        for key, register in _LISTS.items():
            removed = sorted(set(made[key]) - set(getattr(now, key)) - added)
            if removed:
                raise ConfigError(
                    f"initialize: {removed[0]!r} was removed from amp.lists.{name}_overrides.{key}; autocast goes on "
                    "casting it: move it to the list of the dtype that it is to run in"
                )
            for each in getattr(now, key):
                if each not in made[key]:
                    register(now.MODULE, each)
