"""What Keras 2 and TensorFlow 1 called mixed precision, on TensorFlow 2.15 and newer, Keras 2 and 3.

from unifiedamp.compat.keras2 import LossScaleOptimizer, enable_mixed_precision_graph_rewrite
from unifiedamp.compat.keras2 import experimental as mixed_precision
"""

import tensorflow as tf

from . import experimental
from .optimizer import LossScaleOptimizer
from .rewrite import disable_mixed_precision_graph_rewrite, enable_mixed_precision_graph_rewrite, session_config

Policy = tf.keras.mixed_precision.Policy
global_policy = tf.keras.mixed_precision.global_policy
set_global_policy = tf.keras.mixed_precision.set_global_policy

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
