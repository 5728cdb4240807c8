"""Whole models: reading and writing their true weights, and copies for inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..backend import Backend
from ..errors import CheckpointError, PolicyError, PolicyNotSupportedError, WrongObjectError, first_names, nearest
from ..policy import Policy


def master_weights(backend: Backend, model: Any) -> dict[str, Any]:
    """See ``Amp.master_weights``."""
    _check(backend, model, "float32_weights", "amp.master_weights")
    return backend.weights.read(model)


def load_master_weights(backend: Backend, model: Any, weights: Mapping[str, Any]) -> None:
    """See ``Amp.load_master_weights``."""
    import numpy as np

    _check(backend, model, "float32_weights", "amp.load_master_weights")
    arrays = {name: np.asarray(value) for name, value in weights.items()}
    wanted = backend.weights.read(model)
    _check_fits(arrays, wanted)
    backend.weights.write(model, {name: array.astype(wanted[name].dtype) for name, array in arrays.items()})


def convert_model(
    backend: Backend, model: Any, inputs: Sequence[Any], policy: str | Policy | None, default: Policy
) -> Any:
    """See ``Amp.convert_model``."""
    _check(backend, model, "convert_model", "amp.convert_model")
    chosen = default if policy is None else Policy.parse(policy) if isinstance(policy, str) else policy
    if not isinstance(chosen, Policy):
        raise PolicyError(f"amp.convert_model: policy must be a Policy or its name, got {policy!r}")
    if chosen.compute_dtype == "float32":
        raise PolicyError(
            f"amp.convert_model: policy {str(chosen)!r} computes in float32, so there is nothing to convert; "
            "name one that does not: policy='mixed_bfloat16'"
        )
    if chosen.compute_dtype == "float8":
        raise PolicyNotSupportedError(
            f"amp.convert_model: policy {str(chosen)!r}: models are not stored in float8; nearest: 'mixed_bfloat16'"
        )
    if chosen.emulate:
        raise PolicyNotSupportedError(
            f"amp.convert_model: policy {str(chosen)!r}: a copy computes in the native dtype; pass a policy without "
            "emulate"
        )
    return backend.converter.convert(model, inputs, chosen.replace(loss_scale=None))


def check_models(backend: Backend, models: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what ``amp.inference`` was given.

    Raises:
        WrongObjectError: not a model of the backend.
    """
    for model in models:
        _check_model(backend, model, "amp.inference")
    return models


def _check(backend: Backend, model: Any, feature: str, call: str) -> None:
    backend.require(feature, call)
    _check_model(backend, model, call)


def _check_model(backend: Backend, model: Any, call: str) -> None:
    if not backend.training.is_model(model):
        raise WrongObjectError(f"{call}: expected a model of backend {backend.name!r}, got {type(model).__name__}")


def _check_fits(given: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name, array in given.items():
        if name not in wanted:
            raise CheckpointError(
                f"amp.load_master_weights: the model has no weights {name!r}{nearest(str(name), wanted)}; nothing was "
                "loaded"
            )
        kinds = "fiuc" if wanted[name].dtype.kind == "c" else "fiu"
        if array.shape != wanted[name].shape or array.dtype.kind not in kinds:
            raise CheckpointError(
                f"amp.load_master_weights: {name!r} has shape {array.shape} and dtype {array.dtype}, the model wants "
                f"numbers of shape {wanted[name].shape}; nothing was loaded"
            )
    missing = [name for name in wanted if name not in given]
    if missing:
        raise CheckpointError(
            f"amp.load_master_weights: {len(missing)} weights of the model are missing ({first_names(missing)}); "
            "nothing was loaded"
        )
