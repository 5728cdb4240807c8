"""``Tuning`` on TensorFlow: the native means of each item, and the debugging modes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import tensorflow as tf

from unifiedamp.backend import (
    PlanRow,
    SessionSpec,
    Support,
    Switches,
    Tuner,
    bias_rows,
    compile_note,
    errors,
    item_rows,
)

from .. import internals, patches
from ..patches import TF32
from .selection import DeviceInfo

TF32_SINCE = (8, 0)
"""The first compute capability with TF32."""

AUTOTUNE = "TF_CUDNN_USE_AUTOTUNE"


COSTS = {
    "tf.debugging.enable_check_numerics()": "each result is checked for inf and nan",
    "tf.config.run_functions_eagerly(True)": "compiled steps run as plain Python",
    "tf.data.experimental.enable_debug_mode()": "datasets run in Python, element by element",
    "tf.profiler.experimental.start()": "each operation is recorded",
}
"""Debugging mode → what it costs."""


def tuning_support(device: DeviceInfo) -> dict[str, Support]:
    """Return item → whether it has an effect on a device, and by which native means."""
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


def _tf32(device: DeviceInfo) -> Support:
    if device.is_cpu:
        return Support(False, f"TF32 is of NVIDIA's GPUs, and this session is on {device.name}")
    if device.compute_capability is not None and device.compute_capability < TF32_SINCE:
        return Support(False, f"no TF32 at compute capability {device.compute_capability}; it came with 8.0")
    return Support(True, "tf.config.experimental.enable_tensor_float_32_execution(True)")


def _autotune(device: DeviceInfo) -> Support:
    if device.is_cpu:
        return Support(False, f"cuDNN is of NVIDIA's GPUs, and this session is on {device.name}")
    if os.environ.get(AUTOTUNE, "1").lower() in ("0", "false"):
        return Support(False, f"{AUTOTUNE}={os.environ[AUTOTUNE]} is set in the environment")
    return Support(True, f"{AUTOTUNE}=1, TensorFlow's own default")


def compiles_with_xla(spec: SessionSpec, mode: str) -> bool:
    """Return whether a step compiled in ``mode`` is compiled by XLA; by best effort not under the graph rewrite."""
    rewritten = spec.options.get("mode") == "graph_rewrite" and spec.tuning.best_effort
    return bool(spec.options.get("xla", mode == "max" and not rewritten))


class TensorFlowTuner(Tuner):
    """The tuning of one session.

    Args:
        spec: the session's.
        device: the session's.

    Attributes:
        switches: process-wide settings that hold while the session computes.
    """

    def __init__(self, spec: SessionSpec, device: DeviceInfo) -> None:
        self._spec, self._device = spec, device
        self._channels_first: list[str] = []
        self._biases: list[str] = []
        self._recomputed: list[str] = []
        self.switches = Switches([TF32] if spec.tuning.tf32 and tuning_support(device)["tf32"] else [])

    @contextmanager
    def scope(self, inner: AbstractContextManager[None]) -> Iterator[None]:
        """Enter ``inner``; layers created inside take their images with channels last, where that is asked for."""
        with inner, patches.image_layout("channels_last" if self._spec.tuning.channels_last else None):
            yield

    def note(self, *, recomputed: Sequence[str], biases: Sequence[str], channels_first: Sequence[str]) -> None:
        """Note what was found in a prepared model, as layer paths.

        Args:
            recomputed: layers that are recomputed.
            biases: layers with a bias that a batch norm follows.
            channels_first: layers that take their images with channels first.
        """
        self._recomputed += recomputed
        self._biases += biases
        if self._spec.tuning.channels_last:
            self._channels_first += channels_first
            if channels_first and not self._spec.tuning.best_effort:
                text = f"tuning.channels_last has no effect here: {_made_first(channels_first)}"
                self._spec.warn(text, errors.TuningWarning)

    def support(self) -> Mapping[str, Support]:
        return tuning_support(self._device)

    def debug_modes(self) -> dict[str, str]:
        found = {
            "tf.debugging.enable_check_numerics()": internals.checks_numerics(),
            "tf.config.run_functions_eagerly(True)": tf.config.functions_run_eagerly(),
            "tf.data.experimental.enable_debug_mode()": internals.debugs_data(),
            "tf.profiler.experimental.start()": internals.is_profiling(),
        }
        return {mode: COSTS[mode] for mode, on in found.items() if on}

    # -- explaining ----------------------------------------------------------------------------------------------

    def rows(self) -> list[PlanRow]:
        notes = {
            "channels_last": self._layout(),
            "tf32": ("native", "while the session computes; TensorFlow's own default is True"),
            "cudnn_benchmark": ("native", "nothing is changed"),
            "set_to_none": ("native", "a tape's gradients are values: nothing is kept, nothing is zeroed"),
            "compile": self._compiled(),
            "checkpoint_layers": ("native", self._recomputation()),
        }
        rows = item_rows(self._spec.tuning, tuning_support(self._device), notes)
        return rows + bias_rows(self._biases, "use_bias=False", "the layers'")

    def _layout(self) -> tuple[str, str]:
        if self._channels_first:
            return "no effect", f"no effect here: {_made_first(self._channels_first)}"
        return "native", "Keras's own default; on a GPU TensorFlow's layout pass changes it where that is faster"

    def _compiled(self) -> tuple[str, str]:
        mode = self._spec.compile_mode
        if mode != "max":
            return compile_note(mode)
        if not compiles_with_xla(self._spec, mode):
            return "no effect", "no effect here: mode='graph_rewrite' and XLA exclude each other"
        return "native", "XLA; over several replicas, the forward and backward pass of each"

    def _recomputation(self) -> str:
        known = errors.first_names(self._recomputed) or "layers are known once a model is prepared"
        return f"{known}; recomputed under the region's autocast, batch norms count a batch once"


def _made_first(names: Sequence[str]) -> str:
    return f"{errors.first_names(names)} made with data_format='channels_first'; make the model inside amp.scope()"
