"""What Keras 2 and TensorFlow 1 called mixed precision, on TensorFlow 2.15 and newer, Keras 2 and 3.

from unifiedamp.compat.keras2 import LossScaleOptimizer, enable_mixed_precision_graph_rewrite
from unifiedamp.compat.keras2 import experimental as mixed_precision
"""

from typing import Any

import tensorflow as tf

from . import experimental
from .optimizer import LossScaleOptimizer, keras_policy
from .rewrite import disable_mixed_precision_graph_rewrite, enable_mixed_precision_graph_rewrite, session_config

Policy = tf.keras.mixed_precision.Policy
global_policy = tf.keras.mixed_precision.global_policy


def set_global_policy(policy: Any) -> None:
    """Set Keras's global policy, a name or a policy of Keras's."""
    name = getattr(policy, "name", policy)
    tf.keras.mixed_precision.set_global_policy(policy if keras_policy(name) == name else keras_policy(name))


__all__ = [
    "LossScaleOptimizer",
    "Policy",
    "disable_mixed_precision_graph_rewrite",
    "enable_mixed_precision_graph_rewrite",
    "experimental",
    "global_policy",
    "session_config",
    "set_global_policy",
]
