"""Loss scaling: the settings, the state and the reference transition; readers of other systems' scaler states."""

from .settings import HYSTERESIS_RESETS, KINDS, DynamicLossScale, LossScale, NoLossScale, StaticLossScale
from .state import FLOAT32_MAX, ScaleState, float32
from .text import parse_loss_scale

__all__ = [
    "FLOAT32_MAX",
    "HYSTERESIS_RESETS",
    "KINDS",
    "DynamicLossScale",
    "LossScale",
    "NoLossScale",
    "ScaleState",
    "StaticLossScale",
    "float32",
    "parse_loss_scale",
]
