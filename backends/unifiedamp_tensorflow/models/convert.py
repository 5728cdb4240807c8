"""``amp.convert_model``: a clone of a Keras model for inference, its variables in 16 bits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from unifiedamp.backend import Converter, Policy, SessionSpec, errors

from .. import patches
from .._types import Model, Tensor, Variable
from ..device.selection import DeviceInfo
from ..internals import is_graph_network, native, set_dtype_policy
from ..precision import layers, region_layers
from ..precision.float8_scales import DelayedScaling
from ..precision.global_policy import PolicyScope
from ..precision.keras_mode import KerasMode

keras = tf.keras


class TensorFlowConverter(Converter):
    """Converts models of one session.

    Args:
        spec, device: the session's.
        true_of: returns the true weights of a variable, whose values the copy takes.
    """

    means = "a clone whose variables are cast"

    def __init__(self, spec: SessionSpec, device: DeviceInfo, true_of: Callable[[Variable], Tensor]) -> None:
        self._spec, self._device, self._true_of = spec, device, true_of

    def convert(self, model: Model, inputs: Sequence[Any], policy: Policy) -> Model:
        """Return a clone; Keras runs it in evaluation mode unless ``training`` is given.

        A layer whose dtype the user chose keeps it, as in training.

        Args:
            model: a built Keras model, prepared or not.
            inputs: what the clone is called on. A subclassed model needs some, so that the clone gets its variables.
            policy: computes in float16 or bfloat16.

        Raises:
            PrepareError: the model has no variables yet.
            PolicyNotSupportedError: ``policy`` has ``emulate``.
            UnsupportedError: the model cannot be cloned, or its clone is another model.
        """
        if policy.emulate:
            raise errors.PolicyNotSupportedError(
                f"amp.convert_model: policy {str(policy)!r} is emulated in a session's regions only: give a policy "
                "without emulate"
            )
        if not model.built or not model.weights:
            raise errors.PrepareError(
                f"amp.convert_model: model {model.name!r} has no variables yet; call it once on a batch"
            )
        made = _finish(self._cloned(model, policy), inputs, policy)
        _copy_weights(model, made, self._true_of)
        made.trainable = False
        return made

    def _cloned(self, model: Model, policy: Policy) -> Any:
        wanted = self._wanted(model, policy)
        try:
            with PolicyScope(policy.compute_dtype):
                return _clone(model, wanted)
        except Exception as error:
            reason = str(error).strip().partition("\n")[0]
            raise errors.UnsupportedError(
                f"amp.convert_model: {type(model).__name__} {model.name!r} cannot be cloned: {reason}; a subclassed "
                "model needs get_config() and from_config()"
            ) from error

    def _wanted(self, model: Model, policy: Policy) -> dict[str, str]:
        """Return layer path → name of the dtype policy that the clone's layer has."""
        pure = policy.replace(param_dtype=policy.compute_dtype)
        spec = SessionSpec(pure, self._spec.loss_scale, options=self._spec.options)
        mode = KerasMode(spec, self._device, DelayedScaling(pure.float8))
        return {path: name.removeprefix("mixed_") for path, _, name in mode.wanted(model, pure)}


def _clone(model: Model, wanted: dict[str, str]) -> Any:
    if _is_graph(model):
        with _policies_set(model, wanted):
            return keras.models.clone_model(model)
    kind: Any = layers.original_class(model)
    made = kind.from_config(model.get_config())
    for path, layer in layers.walk(made):
        if path in wanted and not layer.built:
            set_dtype_policy(layer, wanted[path])
    return made


def _is_graph(model: Model) -> bool:
    return isinstance(model, keras.Sequential) or is_graph_network(model) or _functional(model)


def _functional(model: Model) -> bool:
    kinds = {kind.__name__ for kind in layers.original_class(model).__mro__}
    return "Functional" in kinds and layers.original_class(model).__name__ in ("Functional", "Model")


@contextlib.contextmanager
def _policies_set(model: Model, wanted: dict[str, str]) -> Iterator[None]:
    """Give the model's layers the clone's policies, while their configurations are read."""
    changes = patches.PolicyChanges()
    try:
        for path, layer in list(layers.walk(model)):
            changes.set(layer, keras.mixed_precision.Policy(wanted[path]))
        yield
    finally:
        changes.undo()


def _finish(made: Any, inputs: Sequence[Any], policy: Policy) -> Model:
    """Make the clone return the policy's output dtype; build one that is not built yet."""
    if isinstance(made, keras.Sequential):
        made.add(keras.layers.Activation("linear", dtype=policy.output_dtype, name="output_dtype"))
    elif _is_graph(made):
        cast = keras.layers.Activation("linear", dtype=policy.output_dtype)
        made = keras.Model(made.input, tf.nest.map_structure(cast, made.output), name=made.name)
    else:
        region_layers.attach(made, pinned=True, output_dtype=policy.output_dtype)
    if inputs:
        made(*inputs)
    if not made.built:
        raise errors.WrongObjectError(
            f"amp.convert_model: the clone of {type(made).__name__} {made.name!r} gets variables when it is called: "
            "give example inputs, amp.convert_model(model, x)"
        )
    return made


def _copy_weights(model: Model, made: Model, true_of: Callable[[Variable], Tensor]) -> None:
    old, new = (list(map(native, each.weights)) for each in (model, made))
    if [tuple(each.shape) for each in old] != [tuple(each.shape) for each in new]:
        raise errors.UnsupportedError(
            f"amp.convert_model: the clone of {type(model).__name__} {model.name!r} has other variables ({len(new)}, "
            f"and not {len(old)}, or of other shapes), so weights cannot be copied"
        )
    for target, source in zip(new, old, strict=True):
        target.assign(tf.cast(true_of(source), target.dtype))
