"""Which policies run on a context, which of them help, and why not."""

from __future__ import annotations

from unifiedamp.backend import Policy, SessionSpec, Support, errors

from .._types import Context
from ..device.cpu_features import cpu_has_bfloat16, cpu_runs_bfloat16
from ..device.selection import compute_capability, gpu_support, is_cpu
from ..mxnet_api import NUMPY_API
from .operations import PRODUCTS, check_overrides

NO_FLOAT16_CPU = "MXNet has no float16 matrix product on CPU; 'mixed_bfloat16' is the nearest that runs"
NO_FLOAT16_CPU_AT_ALL = "MXNet has no float16 matrix product on CPU; 'float32' is the nearest that runs"
NO_BFLOAT16_GPU = "MXNet casts to bfloat16 on CPU only; 'mixed_float16' is the nearest that runs"
NO_FLOAT8 = "MXNet has no float8 type; '{nearest}' is the nearest that runs{emulated}"
EMULATED_FLOAT8 = "; '{policy}' runs its numerics on a CPU"
NO_BFLOAT16_PARAMS = (
    "MXNet's optimizers have no update kernel for parameters in bfloat16; use 'bfloat16;update=kahan', or "
    "'mixed_bfloat16'"
)
NO_BFLOAT16_PARAMS_2 = (
    "MXNet 2 makes no gradients for parameters in bfloat16 ('unknown type void16'); use 'mixed_bfloat16', or "
    "'bfloat16;emulate=true' for its numerics"
)
NO_BFLOAT16_LAYERS = "MXNet's optimizers do not train layers with parameters in bfloat16; override them to 'float32'"
NO_BFLOAT16_CPU = (
    "this CPU has no AVX512, without which the oneDNN in MXNet knows no bfloat16; 'float32' is the nearest that runs"
)
EMULATE_WIDE = (
    "on MXNet, emulated bfloat16 and float8 numbers are held in float32 arrays, and float16 ones in float16 arrays: "
    "parameters and what computes on them cannot be both; 'mixed_{compute};emulate=true' is the nearest that runs"
)
EMULATE_OUTPUT = (
    "on MXNet, emulated bfloat16 and float8 numbers are held in float32 arrays, and so are outputs: use "
    "output_dtype='float32'"
)
EMULATE_MASTERS = (
    "master_weights=True: on MXNet, emulated bfloat16 parameters have no master weights; "
    "'mixed_bfloat16;emulate=true' rounds float32 parameters where they are used, which computes the same"
)
EMULATE_ON_CPU = "on MXNet, bfloat16 and float8 are emulated on CPU only; 'mixed_float16' is the nearest that runs"
EMULATED = "emulated, for its numerics alone"
ON_CPU = "float16 on CPU is slow, and its matrix products run in float32: for trying out the logic"
BFLOAT16 = "the CPU computes in bfloat16"
NO_BFLOAT16 = "this CPU has neither AVX512-BF16 nor AMX: bfloat16 runs, but slower than float32"

TENSOR_CORES = (7, 0)
"""The first compute capability with Tensor Cores, for float16."""


def policy_support(policy: Policy, context: Context) -> Support:
    """Return whether a policy's dtypes run on a context, and why not."""
    on_cpu = is_cpu(context)
    if not on_cpu and not (gpu := gpu_support(context.device_id)):
        return gpu
    dtypes = _dtypes(policy)
    if policy.emulate:
        return _emulation(policy, dtypes, on_cpu)
    if "float8" in dtypes:
        on_this_cpu = "mixed_bfloat16" if cpu_runs_bfloat16() else "float32"
        nearest, emulated = (
            (on_this_cpu, EMULATED_FLOAT8.format(policy=policy.replace(emulate=True)))
            if on_cpu
            else ("mixed_float16", "")
        )
        return Support(False, NO_FLOAT8.format(nearest=nearest, emulated=emulated))
    if on_cpu and "float16" in dtypes and any(policy.op_overrides.get(op) != "float32" for op in PRODUCTS):
        return Support(False, NO_FLOAT16_CPU if cpu_runs_bfloat16() else NO_FLOAT16_CPU_AT_ALL)
    if on_cpu and "bfloat16" in dtypes and not cpu_runs_bfloat16():
        return Support(False, NO_BFLOAT16_CPU)
    if not on_cpu and "bfloat16" in dtypes:
        return Support(False, NO_BFLOAT16_GPU)
    if policy.param_dtype == "bfloat16":
        if NUMPY_API:
            return Support(False, NO_BFLOAT16_PARAMS_2)
        return _gain("bfloat16", context) if policy.update else Support(False, NO_BFLOAT16_PARAMS)
    if policy.param_dtype == "float16" and "bfloat16" in policy.layer_overrides.values():
        return Support(False, NO_BFLOAT16_LAYERS)
    if on_cpu and "float16" in dtypes:
        return Support(True, ON_CPU, False)
    return _gain(policy.compute_dtype, context)


def _emulation(policy: Policy, dtypes: set[str], on_cpu: bool) -> Support:
    """Return whether a policy's dtypes can be emulated."""
    wide = {"bfloat16", "float8"} & {policy.param_dtype, *dtypes}
    if policy.param_dtype != "float32" and wide and "float16" in {policy.param_dtype, *dtypes}:
        return Support(False, EMULATE_WIDE.format(compute=policy.compute_dtype))
    if not wide:
        return Support(True, EMULATED)
    if not on_cpu:
        return Support(False, EMULATE_ON_CPU)
    return Support(False, EMULATE_OUTPUT) if policy.output_dtype == "float16" else Support(True, EMULATED)


def multicasts(policy: Policy, context: Context) -> bool:
    """Return whether ``amp_multicast`` takes a policy's dtypes: the oneDNN of MXNet 1.9 knows no float16."""
    return NUMPY_API or not is_cpu(context) or "float16" not in _dtypes(policy)


def _dtypes(policy: Policy) -> set[str]:
    return {policy.compute_dtype, policy.output_dtype, *policy.layer_overrides.values()}


def _gain(dtype: str, context: Context) -> Support:
    """Return whether a dtype that runs is faster than float32."""
    if dtype == "float32":
        return Support(True)
    if is_cpu(context):
        return Support(True, BFLOAT16 if cpu_has_bfloat16() else NO_BFLOAT16, cpu_has_bfloat16())
    capability = compute_capability(context.device_id)
    if capability is None:
        return Support(True)
    helps, (major, minor) = capability >= TENSOR_CORES, capability
    return Support(True, f"{'' if helps else 'no '}Tensor Cores at compute capability {major}.{minor}", helps)


def holds_rounded(policy: Policy) -> bool:
    """Return whether parameters are float32 arrays that hold bfloat16 numbers: those of an emulated pure policy."""
    return policy.emulate and policy.param_dtype == "bfloat16"


def check_session_policy(spec: SessionSpec, context: Context) -> None:
    """Refuse what cannot run, warn once of what cannot help.

    Raises:
        PolicyNotSupportedError: with the reason and the nearest policy that runs.
        UnsupportedError: an operator override that MXNet cannot apply.
    """
    check_policy(spec.policy, context)
    if spec.master_weights and holds_rounded(spec.policy):
        raise errors.PolicyNotSupportedError(f"policy '{spec.policy}': {EMULATE_MASTERS}")
    if spec.policy.compute_dtype == "bfloat16" and not spec.policy.emulate and not cpu_has_bfloat16():
        spec.warn(NO_BFLOAT16, errors.NoGainWarning)
    if spec.options.get("layout_optimization") and not NUMPY_API:
        spec.warn("backend_options.mxnet.layout_optimization has no effect before MXNet 2", errors.PolicyWarning)


def check_policy(policy: Policy, context: Context) -> None:
    """Refuse a policy that cannot run on the context.

    Raises:
        PolicyNotSupportedError, UnsupportedError: see :func:`check_session_policy`.
    """
    support = policy_support(policy, context)
    if not support:
        raise errors.PolicyNotSupportedError(f"policy '{policy}' cannot run on MXNet's {context}: {support.reason}")
    check_overrides(policy)


def default_policy(context: Context) -> tuple[str, str]:
    """Return the preset recommended for the context, and why."""
    if not is_cpu(context):
        return "mixed_float16", f"float16 on {context}"
    if cpu_has_bfloat16():
        return "mixed_bfloat16", BFLOAT16
    return "float32", "the CPU does not compute in bfloat16"
