"""The resolved plan: each setting, the native calls it becomes, and what has no effect here."""

from __future__ import annotations

from collections.abc import Sequence

from unifiedamp.backend import PlanRow, Policy, SessionSpec

from ._types import Block, Context
from .mxnet_api import NUMPY_API, mx, op_handle, upstream
from .options import hybridize_call
from .precision import emulation, float8_layers
from .precision.casts import CastTable
from .precision.operations import VOCABULARY

_AMP = upstream.__name__.rpartition(".")[0]
"""The module of MXNet's own AMP."""


def explain(spec: SessionSpec, context: Context, table: CastTable, models: Sequence[Block]) -> list[PlanRow]:
    """Return the resolved plan.

    Args:
        spec: the session's.
        context: the session's.
        table: that of the session's policy.
        models: the prepared ones.
    """
    rows = [PlanRow("device", str(context), f"mx.{context}"), _casts_row(spec.policy, table)]
    rows += _override_rows(spec.policy)
    rows += _param_rows(spec)
    rows.append(_scale_row(spec))
    rows += _accumulation_rows(spec)
    call = hybridize_call(spec.options, spec.compile_mode, bulk=spec.compile_mode == "max")
    rows.append(PlanRow("compile", spec.compile_mode, call))
    rows += _trainer_rows()
    if spec.policy.emulate:
        rows.append(emulation.row(spec.policy))
    if spec.policy.compute_dtype == "float8":
        rows += float8_layers.rows(models, spec.policy)
    if "layout_optimization" in spec.options:
        rows.append(_layout_row(spec))
    return rows


def _casts_row(policy: Policy, table: CastTable) -> PlanRow:
    if not table.casts:
        return PlanRow("policy", str(policy), "autograd.record()", "native", "nothing is cast")
    if table.in_float32:
        return PlanRow("policy", str(policy), "rounding by custom operators", "emulated", "see emulate")
    lists = f"{_AMP}.lists.symbol_{'fp16' if policy.compute_dtype == 'float16' else 'bf16'}"
    note = f"MXNet's own lists and casts, in regions; {_AMP}.init() would patch the process for good"
    return PlanRow("policy", str(policy), f"amp_cast by {lists}", "emulated", note)


def _override_rows(policy: Policy) -> list[PlanRow]:
    rows = []
    for word, choice in policy.op_overrides.items():
        known = [str(t) for t in VOCABULARY[word] if op_handle(t if isinstance(t, str) else t[0]) is not None]
        rows.append(PlanRow(f"op_overrides.{word}", choice, ", ".join(known)))
    for glob, dtype in policy.layer_overrides.items():
        note = "MXNet's lists know operators only; casts are made at the block's boundary, in hybridized graphs too"
        rows.append(PlanRow(f"layer_overrides.{glob}", dtype, "amp_cast", "emulated", note))
    return rows


def _accumulation_rows(spec: SessionSpec) -> list[PlanRow]:
    if spec.accumulate_steps == 1:
        return []
    note = 'grad_req="add" is not used: MXNet then loses gradients of parameters cast to bfloat16'
    native = "added after each backward pass"
    return [PlanRow("accumulate_steps", str(spec.accumulate_steps), native, "emulated", note)]


def _trainer_rows() -> list[PlanRow]:
    update = "gradients are checked before any weight changes"
    calls = (
        "while a scaled loss is pending; a native backward pass is seen at the session's next call; updates by another "
        "Trainer over the same parameters, or by its optimizer itself, are not seen"
    )
    native = "Trainer.step, .update, .allreduce_grads; backward"
    return [
        PlanRow("update_on_kvstore", "false", "Trainer(update_on_kvstore=False)", "native", update),
        PlanRow("native calls", "refused", native, "emulated", calls),
    ]


def _param_rows(spec: SessionSpec) -> list[PlanRow]:
    dtype, kept = spec.policy.param_dtype, spec.policy.state_dtype
    rows = []
    if kept is not None:
        native = "the updater's states, between steps as bits on the host; float32 during Updater.__call__"
        note = f"rounded stochastically in numpy (seed {spec.policy.update_seed})"
        rows.append(PlanRow("state_dtype", kept, native, "emulated", note))
    if dtype == "float32":
        return rows
    native, effect = f"Parameter.cast({dtype!r})", "native"
    if spec.policy.emulate and dtype == "bfloat16":
        native, effect = "float32 arrays, rounded in numpy", "emulated"
    rows += [PlanRow("param_dtype", dtype, native, effect, "batch norm stays float32")]
    if spec.policy.update is not None:
        native = "Updater.__call__ over float32 values, rounded in numpy"
        note = "gradients add up, are unscaled and clipped in float32; states are float32"
        rows.append(PlanRow("update", spec.policy.update, native, "emulated", note))
    if spec.master_weights:
        native = "Optimizer.multi_precision = True; create_state_multi_precision"
        note = "gradients add up, are unscaled and clipped in float32"
        rows.append(PlanRow("master_weights", "float32", native, note=note))
    return rows


def _scale_row(spec: SessionSpec) -> PlanRow:
    if not spec.loss_scale.enabled:
        return PlanRow("loss_scale", str(spec.loss_scale), "loss.backward()", "native", "no scaling, no finite check")
    note = f"{_AMP}.LossScaler uses a new scale one step late and checks one device"
    native = "autograd.backward(loss, scale); multi_all_finite; optimizer.rescale_grad = 1/scale"
    return PlanRow("loss_scale", str(spec.loss_scale), native, "emulated", note)


def _layout_row(spec: SessionSpec) -> PlanRow:
    value = str(spec.options["layout_optimization"])
    if not NUMPY_API:
        return PlanRow("layout_optimization", value, "", "no effect", f"MXNet {mx.__version__} has no such pass")
    return PlanRow("layout_optimization", value, "MXSetOptimizeLayout", "native", "while a graph is built")
