"""Preparing a model in ``amp.prepare``."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx

from unifiedamp.backend import SessionSpec, errors

from . import autocast, layers


def prepare_model(model: nnx.Module, spec: SessionSpec) -> None:
    """Check the parameters' dtypes, cast them to the policy's, and attach the policy to the layers.

    Raises:
        ParamDtypeError: 16-bit parameters under a loss scaler.
    """
    narrow = [path for path, parameter in _parameters(model) if parameter.get_value().dtype.itemsize == 2]
    if narrow and spec.loss_scale.enabled:
        raise errors.ParamDtypeError(
            f"amp.prepare: a loss scaler needs float32 parameters, and these are not: {errors.first_names(narrow)}; "
            "make the layers with param_dtype=float32, or leave the loss scale out"
        )
    if spec.policy.param_dtype != "float32":
        _cast_parameters(model, spec.policy.param_dtype, spec.policy.keep_norm_float32)
    autocast.attach(model, spec.policy)


def _parameters(model: nnx.Module) -> list[tuple[str, nnx.Variable]]:
    state = nnx.to_flat_state(nnx.state(model, nnx.Param, graph=True))
    floating = [(path, one) for path, one in state if jnp.issubdtype(one.get_value().dtype, jnp.floating)]
    return [(".".join(map(str, path)), one) for path, one in floating]


def _cast_parameters(model: nnx.Module, dtype: str, keep_norms: bool) -> None:
    norms = (
        [path for path, layer in layers.layers(model).items() if isinstance(layer, layers.NORMS)] if keep_norms else []
    )
    for path, parameter in _parameters(model):
        if path.rpartition(".")[0] not in norms:
            parameter.set_value(parameter.get_value().astype(dtype))
