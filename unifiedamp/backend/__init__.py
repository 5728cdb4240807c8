"""The public API for backend authors: the interface of a backend, and helpers.

The rules of this layer:

1. Core imports no framework and no backend; a backend imports ``unifiedamp.backend`` and its own framework, no more.
2. The entry point (group ``unifiedamp.backends``) names a :class:`BackendPlugin`: light facts, importing no framework.
   ``load`` imports the framework and returns the :class:`Backend` class, only when that backend is selected.
3. What a framework lacks is answered by :class:`Capabilities` with a reason, and refused with ``UnsupportedError``.
4. The order of calls is core's business (``unifiedamp.training``). When a method here runs, the order is
   right: ``scale_loss`` follows ``autocast``, ``unscale`` runs at most once per step and never inside an accumulation
   window.
5. Global framework state is restored on exit, also when an exception passes.
"""

from .. import errors
from ..formats import BLOCK_FORMATS, FLOAT_FORMATS, LARGEST_SCALE, BlockFormat, FloatFormat
from ..loss_scale import LossScale, ScaleState, float32
from ..names import StepReason
from ..policy import OP_CHOICES, OP_VOCABULARY, PRESETS, Float8Recipe, Policy, PolicySchedule
from ..policy import PRODUCTS as FLOAT8_PRODUCTS
from ..policy.layer_globs import match_layers
from . import forecast, rank_settings, recording, result, rounding, state_rounding
from .amax_history import AmaxHistory
from .backend import Backend
from .capabilities import (
    ARRAY_DTYPES,
    COMPILE_MODES,
    FEATURES,
    TUNING,
    Capabilities,
    EnvironmentDefaults,
    MatmulShape,
    NonFiniteReport,
    PlanRow,
    Support,
)
from .ema import Averaging, WeightAverage, ema_weight
from .forecast import Forecaster, ProductCounts, TensorCounts
from .host_array import host_array
from .launch import Launch, Ranks, read_launch
from .optimizer_states import OptimizerStates, converted
from .optional_roles import (
    Compiler,
    Converter,
    Distributed,
    LayerShapes,
    Profiler,
    Recorder,
    StepOrderState,
    Tuner,
    Unsupported,
    Weights,
    WrappedStep,
)
from .plugin import BackendPlugin, hookimpl
from .policy_switcher import PolicySwitcher
from .prefetch import Prefetcher, convert_batch, prefetch_in_thread
from .processor import Processor, this_processor
from .required import required
from .result import StepResult, StepValues
from .roles import Device, Precision, ScaledLoss, StepFollower, Training, backward_in_context
from .spec import SessionSpec
from .switches import Switch, Switches
from .tuning import Tuning, bias_rows, compile_note, item_rows
from .weight_updates import WeightUpdates

__all__ = [
    "ARRAY_DTYPES",
    "BLOCK_FORMATS",
    "COMPILE_MODES",
    "FEATURES",
    "FLOAT8_PRODUCTS",
    "FLOAT_FORMATS",
    "LARGEST_SCALE",
    "OP_CHOICES",
    "OP_VOCABULARY",
    "PRESETS",
    "TUNING",
    "AmaxHistory",
    "Averaging",
    "Backend",
    "BackendPlugin",
    "BlockFormat",
    "Capabilities",
    "Compiler",
    "Converter",
    "Device",
    "Distributed",
    "EnvironmentDefaults",
    "Float8Recipe",
    "FloatFormat",
    "Forecaster",
    "Launch",
    "LayerShapes",
    "LossScale",
    "MatmulShape",
    "NonFiniteReport",
    "OptimizerStates",
    "PlanRow",
    "Policy",
    "PolicySchedule",
    "PolicySwitcher",
    "Precision",
    "Prefetcher",
    "Processor",
    "ProductCounts",
    "Profiler",
    "Ranks",
    "Recorder",
    "ScaleState",
    "ScaledLoss",
    "SessionSpec",
    "StepFollower",
    "StepOrderState",
    "StepReason",
    "StepResult",
    "StepValues",
    "Support",
    "Switch",
    "Switches",
    "TensorCounts",
    "Training",
    "Tuner",
    "Tuning",
    "Unsupported",
    "WeightAverage",
    "WeightUpdates",
    "Weights",
    "WrappedStep",
    "backward_in_context",
    "bias_rows",
    "compile_note",
    "convert_batch",
    "converted",
    "ema_weight",
    "errors",
    "float32",
    "forecast",
    "hookimpl",
    "host_array",
    "item_rows",
    "match_layers",
    "prefetch_in_thread",
    "rank_settings",
    "read_launch",
    "recording",
    "required",
    "result",
    "rounding",
    "state_rounding",
    "this_processor",
]
