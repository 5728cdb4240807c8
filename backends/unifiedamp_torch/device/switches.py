"""Settings of torch that hold for the whole process and that ``Tuning`` sets while a session computes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from unifiedamp.backend import Switch

#: Who has what ``torch.set_float32_matmul_precision`` sets, by the name that torch 2.9 and later have for it.
_NEWER = [each for each in (torch.backends.cuda.matmul, torch.backends.mkldnn) if hasattr(each, "fp32_precision")]
_NEWER = [getattr(each, "matmul", each) for each in _NEWER]


class _Precision(NamedTuple):
    """How precise products of float32 matrices are.

    Attributes:
        older: as ``torch.get_float32_matmul_precision`` tells it; None where torch refuses to, because it was set by
            the newer names alone.
        newer: as the newer names tell it.
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
