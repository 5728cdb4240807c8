"""``Tuning`` on TensorFlow: what each item is on a device, and what becomes of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from typing import Any

import tensorflow as tf
from tensorflow.python.debug.lib import check_numerics_callback
from tensorflow.python.profiler import profiler_v2

from unifiedamp.backend import (
    PlanRow,
    SessionSpec,
    Support,
    Switch,
    Switches,
    bias_rows,
    compile_note,
    errors,
    item_rows,
)

from ..precision import layers
from .devices import Device

TF32_SINCE = (8, 0)
"""The first compute capability with TF32."""

AUTOTUNE = "TF_CUDNN_USE_AUTOTUNE"
TF32 = Switch(
    tf.config.experimental.tensor_float_32_execution_enabled,
    tf.config.experimental.enable_tensor_float_32_execution,
    True,
)


def support(device: Device) -> dict[str, Support]:
    """Return what each item is on a device."""
    return {
        "channels_last": Support(True, "keras.backend.set_image_data_format('channels_last') inside amp.scope()"),
        "tf32": _tf32(device),
        "cudnn_benchmark": _autotune(device),
        "fused_optimizer": Support(
            False, "Keras has no fused optimizers; in a step compiled by XLA (tuning.compile) the update is fused"
        ),
        "set_to_none": Support(True, "tape.gradient(...)"),
        "compile": Support(True, "tf.function(step, jit_compile=True)"),
        "checkpoint_layers": Support(True, "tf.recompute_grad(layer)"),
    }


def _tf32(device: Device) -> Support:
    if device.is_cpu:
        return Support(False, f"TF32 is of NVIDIA's GPUs, and this session is on {device.name}")
    if device.compute_capability is not None and device.compute_capability < TF32_SINCE:
        return Support(False, f"no TF32 at compute capability {device.compute_capability}; it came with 8.0")
    return Support(True, "tf.config.experimental.enable_tensor_float_32_execution(True)")


def _autotune(device: Device) -> Support:
    if device.is_cpu:
        return Support(False, f"cuDNN is of NVIDIA's GPUs, and this session is on {device.name}")
    if os.environ.get(AUTOTUNE, "1").lower() in ("0", "false"):
        return Support(False, f"{AUTOTUNE}={os.environ[AUTOTUNE]} is set in the environment")
    return Support(True, f"{AUTOTUNE}=1, TensorFlow's own default")


def by_xla(spec: SessionSpec, mode: str) -> bool:
    """Tell whether a step compiled in ``mode`` is compiled by XLA; by best effort not under the graph rewrite."""
    rewritten = spec.options.get("mode") == "graph_rewrite" and spec.tuning.best_effort
    return bool(spec.options.get("xla", mode == "max" and not rewritten))


class Tuned:
    """What a session has tuned, for ``amp.explain()``.

    Args:
        spec: the session's.
        device: the session's.
    """

    def __init__(self, spec: SessionSpec, device: Device) -> None:
        self._spec, self._device = spec, device
        self._first: list[str] = []
        self._biases: list[str] = []
        self._again: list[str] = []
        self.switches = Switches([TF32] if spec.tuning.tf32 and support(device)["tf32"] else [])

    @contextmanager
    def scope(self, inner: AbstractContextManager[None]) -> Iterator[None]:
        """Have layers made inside take their images with channels last."""
        before = tf.keras.backend.image_data_format()
        with inner:
            if self._spec.tuning.channels_last:
                tf.keras.backend.set_image_data_format("channels_last")
            try:
                yield
            finally:
                if self._spec.tuning.channels_last:
                    tf.keras.backend.set_image_data_format(before)

    def note(self, model: Any, again: Sequence[str]) -> None:
        """Note what a prepared model is like."""
        self._again += again
        self._biases += biases_before_norm(model)
        if self._spec.tuning.channels_last:
            found = layers.walk(model)
            first = [path for path, one in found if getattr(one, "data_format", None) == "channels_first"]
            self._first += first
            if first and not self._spec.tuning.best_effort:
                self._spec.warn(f"tuning.channels_last has no effect here: {_made_first(first)}", errors.TuningWarning)

    # -- explaining ----------------------------------------------------------------------------------------------

    def rows(self) -> list[PlanRow]:
        """Return the rows of ``amp.explain()``."""
        notes = {
            "channels_last": self._layout(),
            "tf32": ("native", "while the session computes; TensorFlow's own default is True"),
            "cudnn_benchmark": ("native", "nothing is changed"),
            "set_to_none": ("native", "a tape's gradients are values: nothing is kept, nothing is zeroed"),
            "compile": self._compiled(),
            "checkpoint_layers": ("native", self._recomputed()),
        }
        rows = item_rows(self._spec.tuning, support(self._device), notes)
        return rows + bias_rows(self._biases, "use_bias=False", "the layers'")

    def _layout(self) -> tuple[str, str]:
        if self._first:
            return "no effect", f"no effect here: {_made_first(self._first)}"
        return "native", "Keras's own default; on a GPU TensorFlow's layout pass changes it where that is faster"

    def _compiled(self) -> tuple[str, str]:
        mode = self._spec.compile_mode
        if mode != "max":
            return compile_note(mode)
        if not by_xla(self._spec, mode):
            return "no effect", "no effect here: mode='graph_rewrite' and XLA exclude each other"
        return "native", "XLA; several replicas are left to tf.function" if self._spec.tuning.best_effort else "XLA"

    def _recomputed(self) -> str:
        known = errors.first_names(self._again) or "layers are known once a model is prepared"
        return f"{known}; recomputed under the region's autocast, batch norms count a batch once"


def _made_first(names: Sequence[str]) -> str:
    return f"{errors.first_names(names)} made with data_format='channels_first'; make the model inside amp.scope()"


def biases_before_norm(model: Any) -> list[str]:
    """Return the layers with a bias that a batch norm follows, in the order of the model's layers."""
    leaves = [(path, layer) for path, layer in layers.walk(model) if not list(_inner(layer))]
    return [
        path
        for (path, layer), (_, norm) in pairwise(leaves)
        if isinstance(norm, tf.keras.layers.BatchNormalization) and getattr(layer, "use_bias", False)
        and getattr(layer, "activation", None) in (None, tf.keras.activations.linear)
    ]  # fmt: skip


def _inner(layer: Any) -> Iterator[Any]:
    yield from layer._flatten_layers(include_self=False)


def debugging_switches() -> dict[str, str]:
    """Return TensorFlow's debugging switches that are on → what they cost."""
    found = {
        "tf.debugging.enable_check_numerics()": hasattr(check_numerics_callback._state, "check_numerics_callback"),
        "tf.config.run_functions_eagerly(True)": tf.config.functions_run_eagerly(),
        "tf.data.experimental.enable_debug_mode()": _data_debug_mode(),
        "tf.profiler.experimental.start()": profiler_v2._profiler is not None,
    }
    return {switch: COSTS[switch] for switch, on in found.items() if on}


def _data_debug_mode() -> bool:
    from tensorflow.python.data.ops import debug_mode

    return bool(debug_mode.DEBUG_MODE)


COSTS = {
    "tf.debugging.enable_check_numerics()": "each result is looked through for inf and nan",
    "tf.config.run_functions_eagerly(True)": "compiled steps run as plain Python",
    "tf.data.experimental.enable_debug_mode()": "datasets run in Python, one element after the other",
    "tf.profiler.experimental.start()": "each operation is written down",
}
