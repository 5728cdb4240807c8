"""``Tuning`` on MXNet: what each item is on a context, and doing it to models and Trainers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from unifiedamp.backend import PlanRow, SessionSpec, Support, bias_rows, compile_note, errors, item_rows

from ..compiling.compile import BULK, hybridize_flags
from ..precision.layers import walk
from .versions import NUMPY_API, gluon, mx

AGGREGATED = 45
"""Parameters that one kernel updates, the most that all of MXNet's such kernels take; its own number is 1 or 4."""

BEFORE_NORMS = (gluon.nn.Dense, gluon.nn.Conv2D.__mro__[1])
LAYOUT = "MXSetOptimizeLayout while a graph is built"
FIXED_LAYOUT = (
    f"MXNet {mx.__version__} has no layout pass, and a block has its layout from the start: make it by "
    "gluon.nn.Conv2D(..., layout='NHWC')"
)


def support(context: Any) -> dict[str, Support]:
    """Return what each item is on a context."""
    on_gpu = not context.device_type.startswith("cpu")
    tuned = os.environ.get("MXNET_CUDNN_AUTOTUNE_DEFAULT", "1") != "0"
    if not on_gpu:
        cudnn = Support(False, f"cuDNN is of NVIDIA's GPUs, and this session is on {context}")
    elif tuned:
        cudnn = Support(True, "MXNET_CUDNN_AUTOTUNE_DEFAULT=1, MXNet's own default")
    else:
        cudnn = Support(False, "MXNET_CUDNN_AUTOTUNE_DEFAULT=0 is set in the environment")
    return {
        "channels_last": Support(NUMPY_API, LAYOUT if NUMPY_API else FIXED_LAYOUT),
        "tf32": Support(False, "MXNet has no setting for TF32"),
        "cudnn_benchmark": cudnn,
        "fused_optimizer": Support(True, f"optimizer.aggregate_num = {AGGREGATED}"),
        "set_to_none": Support(True, "gradients are marked as not fresh, and written over by the next backward pass"),
        "compile": Support(True, "amp.compile(mode='max')"),
        "checkpoint_layers": Support(
            False, "Gluon computes nothing again; MXNET_BACKWARD_DO_MIRROR is of MXNet 1's symbolic executor"
        ),
    }  # fmt: skip


def aggregates(optimizer: Any) -> bool:
    """Tell whether an optimizer updates several parameters at once; of MXNet 1 those that have a number for it do."""
    if NUMPY_API:
        return "aggregate_num" in type(optimizer).__init__.__code__.co_varnames
    return bool(optimizer.aggregate_num)


def fuse(trainer: Any) -> Callable[[], None]:
    """Have a Trainer update many parameters by one kernel; return what takes that back."""
    optimizer, updaters = trainer._optimizer, list(trainer._updaters)
    before, each_before = optimizer.aggregate_num, [updater.aggregate_updates for updater in updaters]

    def write(number: int, flags: Sequence[bool]) -> None:
        optimizer.aggregate_num = number
        for updater, flag in zip(updaters, flags, strict=True):
            updater.aggregate_updates = flag

    write(AGGREGATED, [True] * len(updaters))
    return lambda: write(before, each_before)


class Tuned:
    """What a session has tuned, for ``amp.explain()``.

    Args:
        spec: the session's.
        context: the session's.
    """

    def __init__(self, spec: SessionSpec, context: Any) -> None:
        self._spec, self._context = spec, context
        self._unfused: list[str] = []
        self._biases: list[str] = []

    @property
    def layout(self) -> bool:
        """Whether graphs are built with the layout pass."""
        return bool(self._spec.tuning.channels_last and NUMPY_API)

    def fuse(self, trainer: Any) -> Iterator[Callable[[], None]]:
        """Fuse a Trainer's optimizer, if it can be; yield what takes that back."""
        if not self._spec.tuning.fused_optimizer:
            return
        if aggregates(trainer._optimizer):
            yield fuse(trainer)
            return
        why = f"{type(trainer._optimizer).__name__} updates one parameter at a time"
        self._unfused.append(why)
        if not self._spec.tuning.best_effort:
            self._spec.warn(f"tuning.fused_optimizer has no effect here: {why}", errors.TuningWarning)

    def note(self, model: Any) -> None:
        """Note what a prepared model is like."""
        self._biases += biases_before_norm(model)

    def rows(self) -> list[PlanRow]:
        """Return the rows of ``amp.explain()``."""
        notes = {
            "channels_last": ("native", "in hybridized graphs"),
            "cudnn_benchmark": ("native", "nothing is changed"),
            "fused_optimizer": self._fused(),
            "set_to_none": ("native", "in every session"),
            "compile": self._compiled(),
        }
        mode = self._spec.compile_mode
        flags = ", ".join(f"{key}={value}" for key, value in hybridize_flags(self._spec.options, mode).items())
        compiled = Support(True, f"block.hybridize({flags}), mx.engine.bulk({BULK})")
        there = support(self._context) | {"compile": compiled}
        rows = item_rows(self._spec.tuning, there, notes)
        return rows + bias_rows(self._biases, "use_bias=False", "the blocks'")

    def _fused(self) -> tuple[str, str]:
        if self._unfused:
            return "no effect", f"no effect here: {'; '.join(self._unfused)}"
        return "native", "from amp.prepare on"

    def _compiled(self) -> tuple[str, str]:
        mode = self._spec.compile_mode
        return ("native", "see the row 'compile'") if mode == "max" else compile_note(mode)


def biases_before_norm(model: Any) -> list[str]:
    """Return the blocks with a bias that a batch norm follows, in the order in which blocks were added."""
    leaves = [(path, block) for path, block in walk(model) if not block._children]
    return [
        path
        for (path, block), (_, norm) in pairwise(leaves)
        if isinstance(norm, gluon.nn.BatchNorm) and isinstance(block, BEFORE_NORMS)
        and getattr(block, "bias", None) is not None and getattr(block, "act", None) is None
    ]  # fmt: skip


def debugging_switches() -> dict[str, str]:
    """Return MXNet's debugging switches that are on → what they cost. Whether its profiler runs it does not tell."""
    found = {
        "MXNET_ENGINE_TYPE=NaiveEngine": os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine",
        "MXNET_PROFILER_AUTOSTART=1": os.environ.get("MXNET_PROFILER_AUTOSTART", "0") not in ("", "0"),
    }
    return {switch: COSTS[switch] for switch, on in found.items() if on}


COSTS = {
    "MXNET_ENGINE_TYPE=NaiveEngine": "each operation is waited for",
    "MXNET_PROFILER_AUTOSTART=1": "each operation is written down",
}
