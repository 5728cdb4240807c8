"""Parameters in float64, of layers with ``dtype="float64"``: no policy changes what a layer's own dtype says."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from unifiedamp.backend import PlanRow, SessionSpec, errors

from .._types import Model, Named
from ..precision import layers


def warn_float64(models: Sequence[Model], spec: SessionSpec) -> None:
    """Warn of models in float64 under a policy of fewer bits, which has no effect on them.

    Single layers in float64 are left so on purpose, and ``amp.explain()`` lists them.
    """
    for model in models if _fewer_bits(spec) else ():
        named = layers.parameters([model])
        if named and len(_wide(named)) == len(named):
            spec.warn(
                f"amp.prepare: all {len(named)} trainable parameters of {model.name!r} are float64, and policy "
                f"{str(spec.policy)!r} has no effect on them: its layers have dtype='float64', so the model computes "
                "in float64; leave dtype out and make the model inside 'with amp.scope():'",
                errors.PolicyWarning,
            )


def float64_rows(models: Sequence[Model], spec: SessionSpec) -> list[PlanRow]:
    """Return the row on parameters that a policy of fewer bits leaves in float64; none where there are none."""
    named = layers.parameters(models)
    wide = _wide(named)
    if not wide or not _fewer_bits(spec):
        return []
    note = f"{len(wide)} of {len(named)} ({errors.first_names(wide)}); layers without a dtype follow the policy"
    return [PlanRow("float64 parameters", "float64", "dtype='float64' of the layers", "no effect", note)]


def _fewer_bits(spec: SessionSpec) -> bool:
    return any(policy.compute_dtype != "float32" or policy.layer_overrides for policy in spec.policies)


def _wide(named: Named) -> list[str]:
    return [name for name, variable in named.items() if variable.dtype == tf.float64]
