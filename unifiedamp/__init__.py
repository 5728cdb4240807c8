"""unifiedamp: one mixed-precision training loop for PyTorch, TensorFlow and MXNet.

Importing this package imports no framework; a session imports the one it uses.
"""

from .backend.result import StepResult
from .backend.tuning import Tuning
from .config.plugins import available_backends
from .custom_functions import amp_function
from .errors import (
    AmpError,
    AmpWarning,
    BackendNotFoundError,
    BackendUnavailableError,
    CheckpointError,
    CompileWarning,
    ConfigError,
    LossError,
    LossScaleExhausted,
    NoGainWarning,
    ParamDtypeError,
    PolicyError,
    PolicyNotSupportedError,
    PolicyWarning,
    PrepareError,
    StateWarning,
    StepOrderError,
    StepWarning,
    TuningWarning,
    UnsupportedError,
    WrongObjectError,
)
from .loss_scale import DynamicLossScale, NoLossScale, StaticLossScale
from .policy import Policy, PolicySchedule
from .session import Amp

__version__ = "0.1.0"

__all__ = [
    "Amp",
    "AmpError",
    "AmpWarning",
    "BackendNotFoundError",
    "BackendUnavailableError",
    "CheckpointError",
    "CompileWarning",
    "ConfigError",
    "DynamicLossScale",
    "LossError",
    "LossScaleExhausted",
    "NoGainWarning",
    "NoLossScale",
    "ParamDtypeError",
    "Policy",
    "PolicyError",
    "PolicyNotSupportedError",
    "PolicySchedule",
    "PolicyWarning",
    "PrepareError",
    "StateWarning",
    "StaticLossScale",
    "StepOrderError",
    "StepResult",
    "StepWarning",
    "Tuning",
    "TuningWarning",
    "UnsupportedError",
    "WrongObjectError",
    "amp_function",
    "available_backends",
]
