"""What Keras and TensorFlow call mixed precision, in all their versions."""

from __future__ import annotations

import re

import libcst as cst

from ..source import Source

NAME = "keras"
OLD_IMPORTS = (
    "tensorflow.keras.mixed_precision", "keras.mixed_precision", "tf_keras.mixed_precision",
    "tensorflow.keras.mixed_precision.experimental",
)  # fmt: skip
_KERAS = r"(?:tensorflow\.(?:compat\.v[12]\.)?)?(?:tf_)?keras"
POLICY = re.compile(
    rf"{_KERAS}\.(?:mixed_precision(?:\.experimental)?\.set_(?:global_|dtype_)?policy|config\.set_dtype_policy)"
)
ASKED = re.compile(rf"{_KERAS}\.(?:mixed_precision(?:\.experimental)?\.(?:global_|dtype_)?policy|config\.dtype_policy)")
WRAPPER = re.compile(rf"{_KERAS}\.(?:mixed_precision(?:\.experimental)?|optimizers)\.LossScaleOptimizer")
VALUE = re.compile(rf"{_KERAS}\.(?:mixed_precision(?:\.experimental)?\.Policy|DTypePolicy)")
REWRITE = re.compile(
    r"tensorflow\.(?:compat\.v1\.)?(?:train\.experimental|mixed_precision(?:\.experimental)?)"
    r"\.enable_mixed_precision_graph_rewrite"
)
LOOP = ("get_scaled_loss", "get_unscaled_gradients")
"""What a ``LossScaleOptimizer`` does in a loop."""
V1 = re.compile(r"tensorflow\.(compat\.v1\.)?(Session|InteractiveSession|placeholder)$")


def calls_of(source: Source, meaning: re.Pattern[str]) -> list[cst.Call]:
    """Return the calls of what a pattern means, in order."""
    return [call for call in source.of(cst.Call) if meaning.fullmatch(source.meaning(call.func))]
