"""``mode="keras"``: a Keras dtype policy per layer."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import tensorflow as tf

from unifiedamp.backend import PlanRow, Policy, SessionSpec, Support, errors, match_layers

from .. import patches
from .._types import Layer, Model
from ..device.selection import DeviceInfo
from ..internals import casts_itself, native
from . import emulation, float8, float8_layers, float8_scales, layers, region_layers
from .autocast import DISABLED
from .float8_scales import DelayedScaling
from .global_policy import PolicyScope
from .operations import LAYER_OPS, NORM_LAYERS, check_layer_ops, layer_op
from .saved_names import saved_paths

mixed_precision = tf.keras.mixed_precision


def keras_policy(param_dtype: str, compute_dtype: str) -> str:
    """Return the name of the Keras policy with these dtypes.

    Raises:
        errors.PolicyNotSupportedError: Keras has none.
    """
    if param_dtype == compute_dtype:
        return param_dtype
    if param_dtype == "float32":
        return f"mixed_{compute_dtype}"
    raise errors.PolicyNotSupportedError(
        f"Keras has no policy with {param_dtype} parameters and {compute_dtype} computations; "
        f"nearest: {param_dtype!r} (all in one dtype) or 'mixed_{param_dtype}' (float32 parameters)"
    )


class KerasMode:
    """Layers carry dtype policies; regions of another policy act on prepared layers through ``thread.compute``."""

    def __init__(self, spec: SessionSpec, device: DeviceInfo, scaling: DelayedScaling) -> None:
        self._spec, self._scaling = spec, scaling
        for policy in spec.policies:
            keras_policy(policy.param_dtype, policy.region_dtype)
            check_layer_ops(policy.op_overrides)
        self._follow()
        self._attached: list[Layer] = []
        self._policies = patches.PolicyChanges()
        self._plain: list[str] = []
        self._models = 0
        self._float8: dict[str, str] = {}
        self._warn, self._device = spec.warn, device

    def _follow(self) -> None:
        self._policy = policy = self._spec.policy
        self._name = keras_policy(policy.param_dtype, policy.region_dtype)
        self._emulates = policy.emulate and policy.compute_dtype != float8.NAME

    def scope(self) -> AbstractContextManager[None]:
        """Set the global dtype policy inside; a mixed one where a later policy is, since Keras 2 makes variables cast
        themselves under such alone.
        """
        names = [self._name, *(keras_policy(each.param_dtype, each.region_dtype) for each in self._spec.policies)]
        return PolicyScope(next((name for name in names if name.startswith("mixed_")), self._name))

    def region(self, enabled: bool, policy: Policy | None) -> tuple[str | None, AbstractContextManager[None] | None]:
        """Return the dtype that prepared layers compute in inside, and what emulates it.

        Raises:
            UnsupportedError: the region's policy needs what cannot change from call to call.
        """
        if not enabled:
            return DISABLED, None
        if policy is None or policy == self._policy:
            return self._policy.compute_dtype, self._emulating()
        in_float8 = policy.compute_dtype == float8.NAME == self._policy.compute_dtype
        if in_float8 and policy.float8 != self._policy.float8:
            raise errors.UnsupportedError(
                f"amp.autocast(policy={str(policy)!r}): layers are made ready for recipe {str(self._policy.float8)!r} "
                "by amp.prepare, so the recipe is the session's"
            )
        if policy.emulate != self._policy.emulate:
            raise errors.UnsupportedError(
                f"amp.autocast(policy={str(policy)!r}): on TensorFlow, emulate is set for the session"
            )
        if policy.op_overrides or policy.layer_overrides or policy.param_dtype != self._policy.param_dtype:
            raise errors.UnsupportedError(
                f"amp.autocast(policy={str(policy)!r}): inside a region Keras layers can change their compute dtype "
                "only; give overrides and param_dtype to the session"
            )
        if policy.compute_dtype == float8.NAME != self._policy.compute_dtype:
            raise errors.UnsupportedError(
                f"amp.autocast(policy={str(policy)!r}): layers are made ready for float8 by amp.prepare, so float8 "
                "is a policy for the session"
            )
        if self._plain and policy.compute_dtype != policy.param_dtype:
            raise errors.UnsupportedError(
                f"amp.autocast(policy={str(policy)!r}): this Keras made {errors.first_names(self._plain)} without "
                "variables that cast themselves; make the model in the scope of a session with a mixed policy"
            )
        return policy.compute_dtype, self._emulating()

    def _emulating(self) -> AbstractContextManager[None] | None:
        return emulation.Emulating() if self._emulates else None

    # -- models --------------------------------------------------------------------------------------------------

    def check_models(self, models: Sequence[Model]) -> None:
        """Refuse layers whose variables have the wrong dtype, and overrides that match no layer."""
        for policy in self._spec.policies:
            _check_replicas(policy)
            for model in models:
                self._check_model(model, policy)

    def _check_model(self, model: Model, policy: Policy) -> None:
        for path, layer, wanted in self.wanted(model, policy):
            if wanted != layer.dtype_policy.name:
                _check_switch(path or model.name, layer, wanted)
            if policy.emulate and policy.compute_dtype != float8.NAME:
                kind = layers.original_class(layer).__name__
                emulation.check_layer(path or model.name, layer, kind, self._device)

    def attach(self, models: Sequence[Model]) -> None:
        """Set each layer's policy and make it follow regions."""
        recipe = self._policy.float8
        for model in models:
            rows = self.wanted(model, self._policy)
            paths = [path for path, _, _ in rows]
            shown, names = (float8_scales.names(each, self._models) for each in (paths, saved_paths(model)))
            self._models += 1
            kept = match_layers(self._policy.layer_overrides, paths)
            for (path, layer, wanted), label, name in zip(rows, shown, names, strict=True):
                if wanted != layer.dtype_policy.name:
                    self._policies.set(layer, wanted)
                plain = bool(layer.weights) and not casts_itself(layer)
                pinned = plain or layer.dtype_policy.name != self._name
                call = None
                if self._in_float8(label, layer, kept.get(path) or _dtype_around(path, kept)):
                    delayed = recipe.scaling == "delayed"
                    scales = self._scaling.add(name, float8_layers.sizes_of(layer)) if delayed else None
                    call = functools.partial(float8.call, recipe, scales)
                output_dtype = None if path else self._policy.output_dtype
                around = emulation.Emulating if self._emulates else None
                region_layers.attach(layer, pinned=pinned, output_dtype=output_dtype, call=call, around=around)
                self._attached.append(layer)
                if plain:
                    self._plain.append(path or model.name)
        if self._policy.compute_dtype == float8.NAME and all(self._float8.values()):
            path, why = next(iter(self._float8.items()), ("", "there is no Dense or EinsumDense layer"))
            self._warn(
                f"policy '{self._policy}' runs no layer in float8: {path and path + ': '}{why}",
                errors.PolicyWarning,
            )

    def _in_float8(self, name: str, layer: Layer, kept: str | None) -> bool:
        if self._policy.compute_dtype != float8.NAME:
            return False
        why = float8_layers.rejection_reason(layer, self._name, kept, self._policy.float8.multiple)
        if why is not None:
            self._float8[name] = why
        return why == ""

    def follow_policy(self, models: Sequence[Model]) -> None:
        """Attach to prepared models what the session's policy wants now."""
        self._policies.undo()
        self._attached.clear()
        self._plain.clear()
        self._float8.clear()
        self._models = 0
        self._follow()
        self.attach(models)

    def detach(self) -> None:
        """Restore the layers' classes and policies."""
        for layer in self._attached:
            region_layers.detach(layer)
        self._attached.clear()
        self._policies.undo()
        self._float8.clear()

    def wanted(self, model: Model, policy: Policy) -> list[tuple[str, Layer, str]]:
        """Return (path, layer, policy name) for the layers of ``model`` under ``policy``.

        An override also holds for the layers inside those that it names. A layer whose policy differs from its model's
        was given that dtype by the user, and keeps it unless an override names the layer itself.
        """
        found = list(layers.walk(model))
        chosen = match_layers(policy.layer_overrides, [path for path, _ in found])
        shared = model.dtype_policy.name
        return [
            (path, layer, _wanted(policy, layer, shared, chosen.get(path), _dtype_around(path, chosen)))
            for path, layer in found
        ]

    # -- answers -------------------------------------------------------------------------------------------------

    def around_call(self) -> None:
        """No context is needed."""
        return

    def check_xla(self) -> None:
        """XLA sees the layers' casts."""

    def on_eager_backward(self) -> None:
        """Layers cast eagerly as well."""

    def op_overrides(self) -> Support:
        """Layer kinds only."""
        return Support(
            True,
            f"by layer kind, to 'float32' or 'compute': {', '.join(LAYER_OPS)}; single operations inside a layer need "
            'mode="graph_rewrite"',
        )

    def explain(self) -> list[PlanRow]:
        """Return rows on policies and overrides."""
        policy = self._policy
        rows = [
            PlanRow("mode", "keras", f"keras.mixed_precision.set_global_policy({self._name!r}) inside amp.scope()"),
            PlanRow("autocast", policy.compute_dtype, "layer.compute_dtype, tf.GradientTape"),
            PlanRow("output_dtype", policy.output_dtype, f"tf.cast(model(x), {policy.output_dtype!r})", "emulated",
                    "Keras leaves outputs in the compute dtype"),
        ]  # fmt: skip
        for op, choice in policy.op_overrides.items():
            kinds = ", ".join(LAYER_OPS[op])
            rows.append(PlanRow(f"op_overrides.{op}", choice, f"dtype policy of layers {kinds}", "emulated"))
        for glob, dtype in policy.layer_overrides.items():
            rows.append(PlanRow(f"layer_overrides.{glob}", dtype, f"layer.dtype_policy = {dtype!r} or its mixed form"))
        rows += emulation.rows(policy)
        return rows + (float8_layers.rows(self._float8, policy.float8) if policy.compute_dtype == float8.NAME else [])


def _dtype_around(path: str, chosen: Mapping[str, str]) -> str | None:
    """Return the dtype of the nearest layer in ``chosen`` that holds the one at ``path``."""
    while path := path.rpartition(".")[0]:
        if path in chosen:
            return chosen[path]
    return None


def _wanted(policy: Policy, layer: Layer, shared: str, override: str | None, around: str | None) -> str:
    """Return the name of a layer's dtype policy; ``override``: its own one; ``around``: that of a layer around it."""
    own = layer.dtype_policy.name
    keeps_norm = policy.keep_norm_float32 and policy.param_dtype != "float32" and _is_norm(layer)
    override = override or (around if own == shared and not keeps_norm else None)
    operation = layer_op(layer, policy.op_overrides)
    dtype = operation if operation == "float32" else override or operation
    if dtype is not None:
        dtype = policy.region_dtype if dtype == "compute" else dtype
        return f"mixed_{dtype}" if policy.param_dtype == "float32" != dtype else dtype
    if keeps_norm:
        return "float32"
    return keras_policy(policy.param_dtype, policy.region_dtype) if own == shared else own


def _check_replicas(policy: Policy) -> None:
    if policy.compute_dtype != float8.NAME or policy.recipe != "delayed":
        return
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if replicas > 1:
        raise errors.UnsupportedError(
            f"policy {str(policy)!r}: on TensorFlow, histories of delayed scaling are kept for one replica, and this "
            f"strategy has {replicas}; use recipe 'tensorwise'"
        )


def _check_switch(path: str, layer: Layer, wanted: str) -> None:
    """Refuse to give a built layer a policy that its variables do not fit."""
    policy = mixed_precision.Policy(wanted)
    floating = [v for v in map(native, layer.weights) if v.dtype.is_floating]
    wrong = [v.name for v in layers.own_trainable(layer) if v.dtype.name != policy.variable_dtype]
    if wrong:
        raise errors.PrepareError(
            f"layer {path!r} has {layers.own_trainable(layer)[0].dtype.name} variables (first: {wrong[0]!r}), and the "
            f"policy wants {policy.variable_dtype}: make the model inside 'with amp.scope():', and a layer inside one "
            f"that layer_overrides names with dtype={policy.name!r}"
        )
    if floating and policy.compute_dtype != policy.variable_dtype and not casts_itself(layer):
        raise errors.PrepareError(
            f"layer {path!r} was built under the policy {layer.dtype_policy.name!r}, and in this Keras a built layer "
            f"cannot be switched to {wanted!r}: make the model inside 'with amp.scope():'"
        )


def _is_norm(layer: Layer) -> bool:
    return layers.original_class(layer).__name__ in NORM_LAYERS
