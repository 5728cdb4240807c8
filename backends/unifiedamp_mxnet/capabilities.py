"""What runs where: capabilities, the policies refused, the default, and the resolved plan."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from unifiedamp.backend import FEATURES, PRESETS, Capabilities, PlanRow, Policy, SessionSpec, Support, errors

from .compiling.compile import BULK, hybridize_flags
from .device import tuning
from .device.devices import compute_capability, gpu_support
from .device.versions import NUMPY_API, mx, upstream
from .precision.casts import Table
from .precision.operations import VOCABULARY, check_overrides, op_handle

NO_FLOAT16_CPU = "MXNet has no float16 matrix product on CPU; 'mixed_bfloat16' is the nearest that runs"
NO_FLOAT16_CPU_AT_ALL = "MXNet has no float16 matrix product on CPU; 'float32' is the nearest that runs"
NO_BFLOAT16_GPU = "MXNet casts to bfloat16 on CPU only; 'mixed_float16' is the nearest that runs"
NO_FLOAT8 = "MXNet has no float8 type; '{nearest}' is the nearest that runs"
NO_HALF_PARAMS = "MXNet's optimizers have no update kernel for parameters in bfloat16; use 'mixed_bfloat16'"
PRODUCTS = ("matmul", "linear", "conv", "conv_transpose", "rnn")
"""Operations that have no float16 kernel on CPU."""
ON_CPU = "float16 on CPU is slow, and its matrix products run in float32: for trying out the logic"
MASTERS = "multi_precision=True: float32 copies of float16 weights in the optimizer's states"
NO_BFLOAT16_CPU = (
    "this CPU has no AVX512, without which the oneDNN in MXNet knows no bfloat16; 'float32' is the nearest that runs"
)
AVX512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
BFLOAT16 = "the CPU computes in bfloat16"
NO_BFLOAT16 = "this CPU has neither AVX512-BF16 nor AMX: bfloat16 runs, but slower than float32"
TENSOR_CORES = (7, 0)
"""The first compute capability with Tensor Cores, for float16."""


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Return the CPU's feature flags as Linux names them; empty where they are not known."""
    try:
        return frozenset(Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split())
    except OSError:
        return frozenset()


def cpu_has_bfloat16() -> bool:
    """Tell whether this CPU computes in bfloat16 (AVX512-BF16 or AMX); unknown counts as no."""
    return bool(cpu_flags() & {"avx512_bf16", "amx_bf16"})


def cpu_runs_bfloat16() -> bool:
    """Tell whether bfloat16 runs on this CPU at all; unknown counts as yes."""
    return not cpu_flags() or cpu_flags() >= AVX512


def policy_support(policy: Policy, context: Any) -> Support:
    """Tell whether a policy's dtypes run on a context, and why not."""
    on_cpu = context.device_type.startswith("cpu")
    if not on_cpu and not (gpu := gpu_support(context.device_id)):
        return gpu
    dtypes = _dtypes(policy)
    if "float8" in dtypes:
        on_this_cpu = "mixed_bfloat16" if cpu_runs_bfloat16() else "float32"
        return Support(False, NO_FLOAT8.format(nearest=on_this_cpu if on_cpu else "mixed_float16"))
    if on_cpu and "float16" in dtypes and any(policy.op_overrides.get(op) != "float32" for op in PRODUCTS):
        return Support(False, NO_FLOAT16_CPU if cpu_runs_bfloat16() else NO_FLOAT16_CPU_AT_ALL)
    if on_cpu and "bfloat16" in dtypes and not cpu_runs_bfloat16():
        return Support(False, NO_BFLOAT16_CPU)
    if not on_cpu and "bfloat16" in dtypes:
        return Support(False, NO_BFLOAT16_GPU)
    if policy.param_dtype == "bfloat16":
        return Support(False, NO_HALF_PARAMS)
    if on_cpu and "float16" in dtypes:
        return Support(True, ON_CPU, False)
    return _gain(policy.compute_dtype, context)


def multicasts(policy: Policy, context: Any) -> bool:
    """Tell whether ``amp_multicast`` takes a policy's dtypes: the oneDNN of MXNet 1.9 knows no float16."""
    return NUMPY_API or not context.device_type.startswith("cpu") or "float16" not in _dtypes(policy)


def _dtypes(policy: Policy) -> set[str]:
    return {policy.compute_dtype, policy.output_dtype, *policy.layer_overrides.values()}


def _gain(dtype: str, context: Any) -> Support:
    """Tell whether a dtype that runs is faster than float32."""
    if dtype == "float32":
        return Support(True)
    if context.device_type.startswith("cpu"):
        return Support(True, BFLOAT16 if cpu_has_bfloat16() else NO_BFLOAT16, cpu_has_bfloat16())
    capability = compute_capability(context.device_id)
    if capability is None:
        return Support(True)
    helps, (major, minor) = capability >= TENSOR_CORES, capability
    return Support(True, f"{'' if helps else 'no '}Tensor Cores at compute capability {major}.{minor}", helps)


def check_policy(spec: SessionSpec, context: Any) -> None:
    """Refuse what cannot run, warn once of what cannot help.

    Raises:
        PolicyNotSupportedError: with the reason and the nearest policy that runs.
        UnsupportedError: an operator override that MXNet cannot follow.
    """
    check_region_policy(spec.policy, context)
    if spec.policy.compute_dtype == "bfloat16" and not cpu_has_bfloat16():
        spec.warn(NO_BFLOAT16, errors.NoGainWarning)
    if spec.options.get("layout_optimization") and not NUMPY_API:
        spec.warn("backend_options.mxnet.layout_optimization has no effect before MXNet 2", errors.PolicyWarning)


def check_region_policy(policy: Policy, context: Any) -> None:
    """Refuse a policy that cannot run on the context.

    Raises:
        PolicyNotSupportedError, UnsupportedError: see :func:`check_policy`.
    """
    support = policy_support(policy, context)
    if not support:
        raise errors.PolicyNotSupportedError(f"policy '{policy}' cannot run on MXNet's {context}: {support.reason}")
    check_overrides(policy)


def default_policy(context: Any) -> tuple[str, str]:
    """Return the preset that the context does best, and why."""
    if not context.device_type.startswith("cpu"):
        return "mixed_float16", f"float16 on {context}"
    if cpu_has_bfloat16():
        return "mixed_bfloat16", BFLOAT16
    return "float32", "the CPU does not compute in bfloat16"


def capabilities(context: Any) -> Capabilities:
    """Return what this backend can do on the context."""
    features = dict.fromkeys(FEATURES, Support(True))
    features["float8"] = Support(False, "MXNet has no float8 type")
    features["master_weights"] = Support(True, MASTERS)
    features["float32_weights"] = Support(True, "by the paths of parameters")
    features["convert_model"] = Support(True, "a SymbolBlock that casts float32 parameters in its graph")
    features["no_device_wait"] = Support(
        False, "MXNet chooses on the host whether to update: with a loss scale each step reads one flag back"
    )
    features["kernel_profile"] = Support(False, "MXNet's profiler names operators, not the device's kernels")
    policies = {name: policy_support(preset, context) for name, preset in PRESETS.items()}
    return Capabilities(str(context), policies, features, tuning.support(context))


def explain(spec: SessionSpec, context: Any, table: Table) -> list[PlanRow]:
    """Return the resolved plan."""
    policy = spec.policy
    module = upstream.__name__.rpartition(".")[0]
    rows = [PlanRow("device", str(context), f"mx.{context}")]
    rows.append(_casts_row(policy, table, module))
    for word, choice in policy.op_overrides.items():
        known = [str(t) for t in VOCABULARY[word] if op_handle(t if isinstance(t, str) else t[0]) is not None]
        rows.append(PlanRow(f"op_overrides.{word}", choice, ", ".join(known)))
    for glob, dtype in policy.layer_overrides.items():
        note = "MXNet's lists know operators only; casts stand at the block's boundary, in hybridized graphs too"
        rows.append(PlanRow(f"layer_overrides.{glob}", dtype, "amp_cast", "emulated", note))
    rows += _param_rows(spec)
    rows.append(_scale_row(spec, module))
    if spec.accumulate_steps > 1:
        note = 'grad_req="add" is not used: MXNet then loses gradients of parameters cast to bfloat16'
        rows.append(
            PlanRow("accumulate_steps", str(spec.accumulate_steps), "added after each backward pass", "emulated", note)
        )
    flags = ", ".join(f"{key}={value}" for key, value in hybridize_flags(spec.options, spec.compile_mode).items())
    bulk = f", mx.engine.bulk({BULK})" if spec.compile_mode == "max" else ""
    rows.append(PlanRow("compile", spec.compile_mode, f"block.hybridize({flags}){bulk}"))
    rows.append(
        PlanRow(
            "update",
            "on each device",
            "Trainer(update_on_kvstore=False)",
            "native",
            "gradients are looked at before any weight moves",
        )
    )
    note = (
        "while a scaled loss is pending; a native backward pass is seen at the session's next call; updates by another "
        "Trainer over the same parameters, or by its optimizer itself, are not seen"
    )
    rows.append(
        PlanRow("native_calls", "refused", "Trainer.step, .update, .allreduce_grads; backward", "emulated", note)
    )
    if "layout_optimization" in spec.options:
        rows.append(_layout_row(spec))
    return rows


def _casts_row(policy: Policy, table: Table, module: str) -> PlanRow:
    if not table.casts:
        return PlanRow("policy", str(policy), "autograd.record()", "native", "nothing is cast")
    lists = f"{module}.lists.symbol_{'fp16' if policy.compute_dtype == 'float16' else 'bf16'}"
    note = f"MXNet's own lists and casts, in regions; {module}.init() would patch the process for good"
    return PlanRow("policy", str(policy), f"amp_cast by {lists}", "emulated", note)


def _param_rows(spec: SessionSpec) -> list[PlanRow]:
    dtype = spec.policy.param_dtype
    if dtype == "float32":
        return []
    rows = [PlanRow("param_dtype", dtype, f"Parameter.cast({dtype!r})", note="batch norm stays float32")]
    if spec.master_weights:
        native = "Optimizer.multi_precision = True; create_state_multi_precision"
        note = "gradients add up, are unscaled and clipped in float32"
        rows.append(PlanRow("master_weights", "float32", native, note=note))
    return rows


def _scale_row(spec: SessionSpec, module: str) -> PlanRow:
    if not spec.loss_scale.enabled:
        return PlanRow("loss_scale", str(spec.loss_scale), "loss.backward()", "native", "no scaling, no finite check")
    note = f"{module}.LossScaler uses a new scale one step late and looks at one device"
    native = "autograd.backward(loss, scale); multi_all_finite; optimizer.rescale_grad = 1/scale"
    return PlanRow("loss_scale", str(spec.loss_scale), native, "emulated", note)


def _layout_row(spec: SessionSpec) -> PlanRow:
    value = str(spec.options["layout_optimization"])
    if not NUMPY_API:
        return PlanRow("layout_optimization", value, "", "no effect", f"MXNet {mx.__version__} has no such pass")
    return PlanRow("layout_optimization", value, "MXSetOptimizeLayout", "native", "while a graph is built")
