"""Names that arguments take, as types: editors complete them, and mypy and pyright check them.

Where a set is open (backends are plugins, policies have a text form), the argument takes any text beside these names;
what is wrong with it is said at run time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from numpy.typing import NDArray

    NumpyArray: TypeAlias = NDArray[Any]
else:
    NumpyArray = Any  # numpy is not imported here

BackendName: TypeAlias = Literal["torch", "tensorflow", "mxnet"]
"""Bundled backends. A plugin's name is any other text."""

PolicyName: TypeAlias = Literal[
    "float32", "mixed_float16", "mixed_bfloat16", "mixed_float8", "float16", "bfloat16", "mixed_mxfp8", "mixed_mxfp6",
    "mixed_mxfp6_e2m3", "mixed_mxfp4", "mixed_nvfp4", "mixed_mxint8", "mixed_int8",
]  # fmt: skip
"""Presets, and block formats for ``emulate``. Aliases (``"fp16"``, ``"O1"``, ``"bf16-mixed"``) and ``str(policy)`` are
taken too.
"""

CompileMode: TypeAlias = Literal["default", "max", "off"]
"""Modes of ``amp.compile``."""

TuningName: TypeAlias = Literal["fast", "off"]
"""Presets of ``Tuning``."""

LossScaleName: TypeAlias = Literal["dynamic", "none"]
"""Loss scales that need no number."""

ArrayDtype: TypeAlias = Literal["float32", "float16", "bfloat16", "float64"]
"""What ``amp.to_native`` converts to."""

Dtype: TypeAlias = Literal["float32", "float16", "bfloat16"]
"""Dtypes of parameters, outputs and layers."""

ComputeDtype: TypeAlias = Literal["float32", "float16", "bfloat16", "float8"]
"""Dtypes of computations."""

OpChoice: TypeAlias = Literal["compute", "float32", "widest"]
"""What ``op_overrides`` sets an operation to."""

StepReason: TypeAlias = Literal["applied", "non_finite", "no_gradients", "accumulating", "discarded"]
"""Why a step was applied or not."""
