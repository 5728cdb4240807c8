"""What this backend can do on a context, each answer with a reason."""

from __future__ import annotations

from unifiedamp.backend import PRESETS, Capabilities, Support

from ._types import Context
from .device.tuning import tuning_support
from .precision.policies import policy_support

FEATURES = {
    "context_form": Support(True),
    "loss_scaling": Support(True),
    "accumulation": Support(True),
    "several_optimizers": Support(True),
    "op_overrides": Support(True),
    "layer_overrides": Support(True),
    "master_weights": Support(
        True, "multi_precision=True: float32 copies of float16 weights in the optimizer's states"
    ),
    "emulation": Support(True, "float32 products of rounded operands, float16 by amp_cast, others by numpy"),
    "float8": Support(True, "emulated on a CPU by backend_options.mxnet.emulate; MXNet has no float8 type"),
    "reduce_dtype": Support(True, "a cast around the kvstore's sum over the contexts of one process"),
    "no_device_wait": Support(
        False, "MXNet chooses on the host whether to update: with a loss scale each step reads one flag back"
    ),
}
"""Feature → whether MXNet has it; those of optional roles follow from the roles."""


def declare(context: Context) -> Capabilities:
    """Return what this backend can do on the context, without the features of optional roles."""
    policies = {name: policy_support(preset, context) for name, preset in PRESETS.items()}
    return Capabilities(str(context), policies, FEATURES, tuning_support(context))
