"""Process-wide settings of torch that ``Tuning`` sets while a session computes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from unifiedamp.backend import Switch

#: The objects that hold what ``torch.set_float32_matmul_precision`` sets, from torch 2.9 on.
_NEWER: list[Any] = [
    getattr(each, "matmul", each)
    for each in (torch.backends.cuda.matmul, torch.backends.mkldnn)
    if hasattr(each, "fp32_precision")
]


class _Precision(NamedTuple):
    """How precise products of float32 matrices are.

    Attributes:
        older: what ``torch.get_float32_matmul_precision`` returns; None where it raises, because it was set by
            the newer names alone.
        newer: the values of the newer names.
    """

    older: str | None
    newer: tuple[str, ...] = ()


def _read_precision() -> _Precision:
    newer = tuple(each.fp32_precision for each in _NEWER)
    try:
        return _Precision(torch.get_float32_matmul_precision(), newer)
    except RuntimeError:
        return _Precision(None, newer)


def _write_precision(precision: _Precision) -> None:
    if precision.older is not None:
        torch.set_float32_matmul_precision(precision.older)
    for each, value in zip(_NEWER, precision.newer):  # noqa: B905 - none are given when it is set
        each.fp32_precision = value


def _read_cudnn_tf32() -> Any:
    try:
        return torch.backends.cudnn.allow_tf32
    except RuntimeError:  # set by the newer names: theirs to keep
        return None


def _write_cudnn_tf32(value: bool | None) -> None:
    if value is not None and _read_cudnn_tf32() is not value:
        torch.backends.cudnn.allow_tf32 = value


def _write_benchmark(value: bool) -> None:
    torch.backends.cudnn.benchmark = value


TF32 = (
    Switch(_read_precision, _write_precision, _Precision("high")),
    Switch(_read_cudnn_tf32, _write_cudnn_tf32, True),
)
CUDNN_BENCHMARK = Switch(lambda: torch.backends.cudnn.benchmark, _write_benchmark, True)
