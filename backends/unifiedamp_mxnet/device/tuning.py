"""``MXNetTuner``: what each item of ``Tuning`` is on a context, and doing it to Trainers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from unifiedamp.backend import PlanRow, SessionSpec, Support, Tuner, bias_rows, compile_note, errors, item_rows

from .._types import Block, Context, Optimizer, Trainer, Undo
from ..layer_paths import walk
from ..mxnet_api import NUMPY_API, gluon, mx
from ..patches import aggregate_updates
from .selection import is_cpu

AGGREGATED = 45
"""Parameters that one kernel updates, the most that all of MXNet's such kernels take; its own number is 1 or 4."""

BEFORE_NORMS = (gluon.nn.Dense, gluon.nn.Conv2D.__mro__[1])
LAYOUT = "MXSetOptimizeLayout while a graph is built"
FIXED_LAYOUT = (
    f"MXNet {mx.__version__} has no layout pass, and a block has its layout from the start: make it by "
    "gluon.nn.Conv2D(..., layout='NHWC')"
)
COSTS = {
    "MXNET_ENGINE_TYPE=NaiveEngine": "each operation is synchronized",
    "MXNET_PROFILER_AUTOSTART=1": "each operation is logged",
}
"""MXNet's debugging modes → what they cost."""


class TuningState:
    """Tunes graphs and Trainers as the session asks, and notes what could not be.

    Args:
        spec: the session's.

    Attributes:
        optimize_layout: graphs are built with the layout pass.
        unfused: why Trainers were not fused.
    """

    def __init__(self, spec: SessionSpec) -> None:
        self._spec = spec
        layout = spec.tuning.channels_last and NUMPY_API
        self.optimize_layout = bool(layout or spec.options.get("layout_optimization"))
        self.unfused: list[str] = []

    def fuse(self, trainer: Trainer) -> Iterator[Undo]:
        """Fuse a Trainer's updates, if asked for and possible; yield the undo."""
        if not self._spec.tuning.fused_optimizer:
            return
        if aggregates(trainer._optimizer):
            yield aggregate_updates(trainer, AGGREGATED)
            return
        why = f"{type(trainer._optimizer).__name__} updates one parameter at a time"
        self.unfused.append(why)
        if not self._spec.tuning.best_effort:
            self._spec.warn(f"tuning.fused_optimizer has no effect here: {why}", errors.TuningWarning)


class MXNetTuner(Tuner):
    """Reports on Trainers and graphs that are tuned; the rest of ``Tuning`` is MXNet's own default or not available.

    Args:
        spec: the session's.
        context: the session's.
        models: the prepared models; the list may grow.
        state: what was tuned.
        compile_call: the native calls of ``amp.compile(mode="max")``.
    """

    def __init__(
        self, spec: SessionSpec, context: Context, models: Sequence[Block], state: TuningState, compile_call: str
    ) -> None:
        self._spec, self._context, self._models = spec, context, models
        self._state, self._compile_call = state, compile_call

    def support(self) -> Mapping[str, Support]:
        return tuning_support(self._context)

    def rows(self) -> list[PlanRow]:
        notes = {
            "channels_last": ("native", "in hybridized graphs"),
            "cudnn_benchmark": ("native", "nothing is changed"),
            "fused_optimizer": self._fused_note(),
            "set_to_none": ("native", "in every session"),
            "compile": self._compile_note(),
        }
        items = {**self.support(), "compile": Support(True, self._compile_call)}
        biases = [path for model in self._models for path in biases_before_norm(model)]
        return item_rows(self._spec.tuning, items, notes) + bias_rows(biases, "use_bias=False", "the blocks'")

    def _fused_note(self) -> tuple[str, str]:
        if self._state.unfused:
            return "no effect", f"no effect here: {'; '.join(self._state.unfused)}"
        return "native", "from amp.prepare on"

    def _compile_note(self) -> tuple[str, str]:
        mode = self._spec.compile_mode
        return ("native", "see the row 'compile'") if mode == "max" else compile_note(mode)

    def debug_modes(self) -> dict[str, str]:
        """See the role. Whether MXNet's profiler runs cannot be asked."""
        found = {
            "MXNET_ENGINE_TYPE=NaiveEngine": os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine",
            "MXNET_PROFILER_AUTOSTART=1": os.environ.get("MXNET_PROFILER_AUTOSTART", "0") not in ("", "0"),
        }
        return {mode: COSTS[mode] for mode, on in found.items() if on}


def tuning_support(context: Context) -> dict[str, Support]:
    """Return what each item is on a context."""
    tuned = os.environ.get("MXNET_CUDNN_AUTOTUNE_DEFAULT", "1") != "0"
    if is_cpu(context):
        cudnn = Support(False, f"cuDNN runs on NVIDIA GPUs, and this session is on {context}")
    elif tuned:
        cudnn = Support(True, "MXNET_CUDNN_AUTOTUNE_DEFAULT=1, MXNet's own default")
    else:
        cudnn = Support(False, "MXNET_CUDNN_AUTOTUNE_DEFAULT=0 is set in the environment")
    return {
        "channels_last": Support(NUMPY_API, LAYOUT if NUMPY_API else FIXED_LAYOUT),
        "tf32": Support(False, "MXNet has no setting for TF32"),
        "cudnn_benchmark": cudnn,
        "fused_optimizer": Support(True, f"optimizer.aggregate_num = {AGGREGATED}"),
        "set_to_none": Support(True, "gradients are marked as not fresh, and overwritten by the next backward pass"),
        "compile": Support(True, "amp.compile(mode='max')"),
        "checkpoint_layers": Support(
            False, "Gluon has no recomputation; MXNET_BACKWARD_DO_MIRROR belongs to MXNet 1's symbolic executor"
        ),
    }  # fmt: skip


def aggregates(optimizer: Optimizer) -> bool:
    """Return whether an optimizer updates several parameters at once; in MXNet 1 those with a number for it do."""
    if NUMPY_API:
        return "aggregate_num" in type(optimizer).__init__.__code__.co_varnames
    return bool(optimizer.aggregate_num)


def biases_before_norm(model: Block) -> list[str]:
    """Return the blocks with a bias that a batch norm follows, in the order in which blocks were added.

    One with an activation has that as its child, so it is no leaf, and its bias is not what the norm subtracts.
    """
    leaves = [(path, block) for path, block in walk(model) if not block._children]
    return [
        path
        for (path, block), (_, norm) in pairwise(leaves)
        if isinstance(norm, gluon.nn.BatchNorm) and isinstance(block, BEFORE_NORMS)
        and getattr(block, "bias", None) is not None
    ]  # fmt: skip
