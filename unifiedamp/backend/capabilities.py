"""What a backend reports: what it supports on a device, the plan of a session, where a bad step came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

COMPILE_MODES = {
    "off": "the function unchanged",
    "default": "compiled by the framework's usual means",
    "max": "the fastest available, however long compiling takes",
}
"""What ``amp.compile(mode=...)`` takes."""

ARRAY_DTYPES = ("float32", "float16", "bfloat16", "float64")
"""What ``amp.to_native(array, dtype=...)`` takes."""


@dataclass(frozen=True)
class Support:
    """An answer with its reason; true where the feature is available.

    Attributes:
        ok: whether it is available.
        reason: why, or why not, in a few words.
        helps: of a policy that runs, whether the device computes faster in it than in float32; None where that is not
            known, or no question (float32 itself).
    """

    ok: bool
    reason: str = ""
    helps: bool | None = None

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do on a device, each answer with a reason.

    Attributes:
        device: the device that the answers are for ("cpu", "cuda:0").
        policies: preset name → whether it runs here, and whether it helps.
        features: feature name → whether it is there. Core knows the names in :data:`FEATURES`; a name that is
            missing counts as "no".
        tuning: item of ``Tuning`` → whether it has an effect here, and the native means or the reason why not. Core
            knows the names in :data:`TUNING`; one that is missing counts as "no".
    """

    device: str
    policies: Mapping[str, Support]
    features: Mapping[str, Support]
    tuning: Mapping[str, Support] = field(default_factory=dict)

    def feature(self, name: str) -> Support:
        """Return the answer for ``name``."""
        return self.features[name] if name in self.features else self._undeclared(name)

    def _undeclared(self, name: str) -> Support:
        close = get_close_matches(name, self.features.keys() - FEATURES.keys(), n=1)
        meant = f"; it declares {close[0]!r}, which is none of FEATURES in unifiedamp.backend" if close else ""
        return Support(False, f"not declared by this backend{meant}")

    def tunes(self, item: str) -> Support:
        """Return the answer for an item of ``Tuning``."""
        return self.tuning.get(item, Support(False, "not known to this backend"))


FEATURES = {
    "context_form": "amp.scale_loss as a context, with scaled_loss.backward()",
    "compile": "amp.compile gives a compiled whole step",
    "loss_scaling": "a dynamic loss scale",
    "accumulation": "accumulate_steps above 1",
    "several_optimizers": "several optimizers that share one scale",
    "op_overrides": "Policy.op_overrides",
    "layer_overrides": "Policy.layer_overrides",
    "master_weights": "float32 master weights under a policy whose parameters have 16 bits (Amp(master_weights=True))",
    "weight_updates": "bfloat16 parameters without master weights, updated with stochastic rounding or Kahan summation "
    "(Policy.update)",
    "state_dtype": "optimizers' moments in bfloat16 or float8 between steps (Policy.state_dtype)",
    "float32_weights": "amp.master_weights and amp.load_master_weights: a model's true weights in float32, by name",
    "ema": "amp.ema: an exponential moving average of a model's weights that moves with applied steps",
    "convert_model": "amp.convert_model: a copy of a model for inference in low precision",
    "float8": "linear layers in float8 (mixed_float8), emulated where the hardware has none",
    "amax_history": "float8 recipe 'delayed': scales from the largest magnitudes of earlier steps",
    "policy_schedule": "a policy that changes in the course of a run (Amp(schedule=...))",
    "emulation": "a compute dtype's numerics on any device, by float32 products of rounded operands (Policy.emulate)",
    "several_devices": "one decision over all devices or ranks",
    "reduce_dtype": "the dtype in which gradients are summed between ranks or replicas (Amp(reduce_dtype=...))",
    "no_device_wait": "a step that never waits for the device",
    "recording": "amp.record: each layer's statistics, on recorded steps",
    "forecast": "amp.forecast: what other number formats would lose in each layer, from steps in float32 or bfloat16",
    "shape_advice": "the sizes of a model's matrix products, by layer",
    "kernel_profile": "which kernels the device ran, and how long",
}


TUNING = {
    "channels_last": "convolutional models in the layout that Tensor Cores want",
    "tf32": "TensorFloat-32 for what remains in float32",
    "cudnn_benchmark": "cuDNN tries its algorithms on each new shape",
    "fused_optimizer": "one kernel updates many parameters",
    "set_to_none": "gradients are released, not zeroed",
    "compile": "amp.compile in mode 'max'",
    "checkpoint_layers": "layers that recompute their activations in the backward pass",
}
"""Items of ``Tuning`` → what each means; :class:`Capabilities` answers for them."""


@dataclass(frozen=True)
class PlanRow:
    """One line of ``amp.explain()``.

    Attributes:
        setting: what the user asked for ("policy", "op_overrides.softmax").
        value: the value in force.
        native: the exact native call or value it becomes.
        effect: "native", "emulated", "no effect" or "unavailable".
        note: why, where the effect is not simply native.
    """

    setting: str
    value: str
    native: str
    effect: str = "native"
    note: str = ""


@dataclass(frozen=True)
class MatmulShape:
    """The sizes that one layer's matrix products or convolutions take from the model (not from the batch).

    Attributes:
        layer: the layer's path, as ``layer_overrides`` names it.
        kind: "linear", "conv", "rnn" or "attention".
        dimensions: what it is ("inputs", "outputs", "input channels", "head size") → size; per group in a grouped
            convolution. Sizes that are not known before the first batch are left out.
        dtype: the dtype that it computes in, where the layer itself holds one; empty where the policy decides.
    """

    layer: str
    kind: str
    dimensions: Mapping[str, int]
    dtype: str = ""


@dataclass(frozen=True)
class NonFiniteReport:
    """Where the last non-finite step came from.

    Attributes:
        tensors: names of the gradients that held inf or nan; empty when not known.
        loss_was_finite: whether the unscaled loss was finite; None when not known.
    """

    tensors: tuple[str, ...] = ()
    loss_was_finite: bool | None = None


@dataclass(frozen=True)
class EnvironmentDefaults:
    """What the framework's own environment variables request, where no policy was given.

    Attributes:
        policy: the policy's name or text; empty to take the device's best.
        origin: its origin, for ``amp.explain()``.
        options: ``backend_options`` of the backend that go with it; those that were given stand.
        warning: what to tell the user; empty for nothing.
    """

    policy: str = ""
    origin: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    warning: str = ""
