"""``amp.convert_model``: a clone of a Keras model for inference, its variables in few bits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from unifiedamp.backend import Policy, SessionSpec, errors

from ..capabilities import Device
from ..precision import layers
from ..precision.keras_mode import KerasMode, PolicyScope, set_policy

keras = tf.keras


def convert_model(model: Any, inputs: Sequence[Any], policy: Policy, spec: SessionSpec, device: Device) -> Any:
    """Return the clone; Keras runs it in evaluation mode unless it is told otherwise.

    A layer that was given a dtype of its own keeps it, as in training.

    Args:
        model: a built Keras model, as it is or prepared.
        inputs: what the clone is tried on. A subclassed model needs some, so that the clone gets its variables.
        policy: computes in float16 or bfloat16.
        spec, device: the session's.

    Raises:
        PrepareError: the model has no variables yet.
        UnsupportedError: the model cannot be cloned, or its clone is another model.
    """
    if not model.built or not model.weights:
        raise errors.PrepareError(
            f"amp.convert_model: model {model.name!r} has no variables yet; call it once on a batch"
        )
    wanted = _wanted(model, policy, spec, device)
    try:
        with PolicyScope(policy.compute_dtype):
            made = _clone(model, wanted)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise errors.UnsupportedError(
            f"amp.convert_model: {type(model).__name__} {model.name!r} cannot be cloned: {reason}; a subclassed model "
            "needs get_config() and from_config()"
        ) from error
    made = _finish(made, inputs, policy)
    _copy_weights(model, made)
    made.trainable = False
    return made


def _wanted(model: Any, policy: Policy, spec: SessionSpec, device: Device) -> dict[str, str]:
    """Return layer path → name of the dtype policy that the clone's layer has."""
    pure = policy.replace(param_dtype=policy.compute_dtype)
    mode = KerasMode(SessionSpec(pure, spec.loss_scale, options=spec.options), device)
    return {path: name.removeprefix("mixed_") for path, _, name in mode.wanted(model)}


def _clone(model: Any, wanted: dict[str, str]) -> Any:
    if _is_graph(model):
        with _policies_set(model, wanted):
            return keras.models.clone_model(model)
    kind = layers.original_class(model)
    made = kind.from_config(model.get_config())
    for path, layer in layers.walk(made):
        if path in wanted and not layer.built:
            set_policy(layer, wanted[path])
    return made


def _is_graph(model: Any) -> bool:
    return isinstance(model, keras.Sequential) or bool(getattr(model, "_is_graph_network", False) or _functional(model))


def _functional(model: Any) -> bool:
    kinds = {kind.__name__ for kind in layers.original_class(model).__mro__}
    return "Functional" in kinds and layers.original_class(model).__name__ in ("Functional", "Model")


@contextlib.contextmanager
def _policies_set(model: Any, wanted: dict[str, str]) -> Iterator[None]:
    """Have the model's layers say the clone's policies, while their configurations are read."""
    found = [(layer, layer.dtype_policy, wanted[path]) for path, layer in layers.walk(model)]
    try:
        for layer, _, name in found:
            set_policy(layer, keras.mixed_precision.Policy(name))
        yield
    finally:
        for layer, policy, _ in reversed(found):
            set_policy(layer, policy)


def _finish(made: Any, inputs: Sequence[Any], policy: Policy) -> Any:
    """Have the clone return the policy's output dtype; build one that is not built yet."""
    if isinstance(made, keras.Sequential):
        made.add(keras.layers.Activation("linear", dtype=policy.output_dtype, name="output_dtype"))
    elif _is_graph(made):
        cast = keras.layers.Activation("linear", dtype=policy.output_dtype)
        made = keras.Model(made.input, tf.nest.map_structure(cast, made.output), name=made.name)
    else:
        layers.attach(made, pinned=True, output_dtype=policy.output_dtype)
    if inputs:
        made(*inputs)
    if not made.built:
        raise errors.WrongObjectError(
            f"amp.convert_model: the clone of {type(made).__name__} {made.name!r} gets variables when it is called: "
            "give example inputs, amp.convert_model(model, x)"
        )
    return made


def _copy_weights(model: Any, made: Any) -> None:
    old, new = (list(map(layers.native, each.weights)) for each in (model, made))
    if [tuple(each.shape) for each in old] != [tuple(each.shape) for each in new]:
        raise errors.UnsupportedError(
            f"amp.convert_model: the clone of {type(model).__name__} {model.name!r} has other variables ({len(new)}, "
            f"and not {len(old)}, or of other shapes), so weights cannot be copied"
        )
    for target, source in zip(new, old, strict=True):
        target.assign(tf.cast(source, target.dtype))
