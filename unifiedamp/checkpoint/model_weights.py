"""What a session does with a model as a whole: its true weights, and copies for inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointError, PolicyError, PolicyNotSupportedError, WrongObjectError, first_names, nearest
from ..policy import Policy

if TYPE_CHECKING:
    from ..session import Amp


def master_weights(amp: Amp, model: Any) -> dict[str, Any]:
    """See ``Amp.master_weights``."""
    _check(amp, model, "float32_weights", "amp.master_weights")
    return amp.backend.weights.read(model)


def load_master_weights(amp: Amp, model: Any, weights: Mapping[str, Any]) -> None:
    """See ``Amp.load_master_weights``."""
    import numpy as np

    _check(amp, model, "float32_weights", "amp.load_master_weights")
    arrays = {name: np.asarray(value) for name, value in weights.items()}
    wanted = amp.backend.weights.read(model)
    _check_fits(arrays, wanted)
    amp.backend.weights.write(model, {name: array.astype(wanted[name].dtype) for name, array in arrays.items()})


def convert_model(amp: Amp, model: Any, inputs: Sequence[Any], policy: str | Policy | None) -> Any:
    """See ``Amp.convert_model``."""
    _check(amp, model, "convert_model", "amp.convert_model")
    chosen = amp.policy if policy is None else Policy.parse(policy) if isinstance(policy, str) else policy
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
    return amp.backend.converter.convert(model, inputs, chosen.replace(loss_scale=None))


def _check(amp: Amp, model: Any, feature: str, call: str) -> None:
    amp._require(feature, call)
    if not amp.backend.training.is_model(model):
        raise WrongObjectError(f"{call}: expected a model of backend {amp.backend.name!r}, got {type(model).__name__}")


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
