"""Which device a session runs on, and what that device does well."""

from __future__ import annotations

from pathlib import Path

import torch

from unifiedamp.backend import PRESETS, Policy, Support, errors


def pick_device(wanted: str | None) -> torch.device:
    """Return the device asked for; None takes CUDA where it is there, else the CPU.

    Raises:
        ConfigError: torch does not know the device, or has no autocast for it, or it is not there.
    """
    if wanted is None:
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(wanted)
    except (RuntimeError, TypeError) as error:
        raise errors.ConfigError(f"device {wanted!r} is not one that torch knows ('cpu', 'cuda:0'): {error}") from None
    if not torch.amp.is_autocast_available(device.type):
        raise errors.ConfigError(f"device {wanted!r}: torch {torch.__version__} has no autocast for {device.type!r}")
    if device.type == "cuda":
        return _cuda_device(device)
    try:
        torch.empty(0, device=device)
    except (RuntimeError, NotImplementedError, AssertionError) as error:
        first = str(error).partition("\n")[0]
        raise errors.ConfigError(f"device {wanted!r} is not there: {first}; use device='cpu'") from None
    return device


def _cuda_device(device: torch.device) -> torch.device:
    if not torch.cuda.is_available():
        built = "was built without CUDA" if torch.version.cuda is None else "finds no CUDA device"
        raise errors.ConfigError(f"device {str(device)!r}: torch {torch.__version__} {built}; use device='cpu'")
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise errors.ConfigError(f"device {str(device)!r}: there are {torch.cuda.device_count()} CUDA devices")
    return torch.device("cuda", index)


def looking_is_free(device: torch.device) -> bool:
    """Tell whether reading a value from the device waits for nothing."""
    return device.type == "cpu"


def dtype_support(device: torch.device, dtype: str, emulate: bool = False) -> tuple[Support, Support]:
    """Return whether ``dtype`` computations run on the device, and whether they are faster than float32 there.

    Args:
        device: where.
        dtype: as policies name it.
        emulate: float8 is asked for with ``backend_options.torch.emulate``.
    """
    if dtype == "float8":
        native = float8_support(device)
        chosen = Support(True, "emulated, for its numerics alone") if emulate else native
        return chosen, chosen
    if dtype == "float32":
        return Support(True, "runs everywhere"), Support(True, "the reference")
    if device.type == "cuda":
        return _cuda_support(device, dtype)
    if device.type == "cpu":
        return Support(True, "torch's CPU kernels"), _cpu_helps(dtype)
    return Support(True, f"torch's {device.type} autocast"), Support(True, f"torch's {device.type} autocast")


def _cuda_support(device: torch.device, dtype: str) -> tuple[Support, Support]:
    major, minor = torch.cuda.get_device_capability(device)
    said = f"{torch.cuda.get_device_name(device)}, compute capability {major}.{minor}"
    if torch.version.hip is not None:
        return Support(True, said), Support(True, said)
    if dtype == "bfloat16" and major < 8:
        reason = f"{said}: bfloat16 needs 8.0 or newer"
        return Support(False, reason), Support(False, reason)
    helps = major >= 7
    return Support(True, said), Support(helps, f"{said}: {'Tensor Cores' if helps else 'no Tensor Cores'}")


def float8_support(device: torch.device) -> Support:
    """Return whether the device multiplies float8 matrices."""
    if device.type != "cuda":
        return Support(False, f"float8 products need a GPU of compute capability 8.9 or newer, not {device.type}")
    if torch.version.hip is not None:
        return Support(False, "float8 products have not been tried on ROCm")
    if torch.__version__ < (2, 5):
        return Support(False, f"float8 products need torch 2.5 or newer, this is {torch.__version__}")
    major, minor = torch.cuda.get_device_capability(device)
    said = f"{torch.cuda.get_device_name(device)}, compute capability {major}.{minor}"
    if (major, minor) < (8, 9):
        return Support(False, f"{said}: float8 products need 8.9 or newer")
    return Support(True, f"{said}: float8 Tensor Cores")


#: The instruction set that makes a dtype fast on x86: what /proc/cpuinfo calls it, what people call it.
_X86_FLAGS = {
    "bfloat16": (("avx512_bf16", "AVX512-BF16"), ("amx_bf16", "AMX-BF16")),
    "float16": (("avx512_fp16", "AVX512-FP16"), ("amx_fp16", "AMX-FP16")),
}
#: The same on Arm.
_ARM_FLAGS = {"bfloat16": (("bf16", "Arm BF16"),), "float16": (("asimdhp", "Arm FP16"),)}


def _cpu_helps(dtype: str) -> Support:
    flags = cpu_flags()
    wanted = _X86_FLAGS[dtype] + _ARM_FLAGS[dtype]
    found = [label for flag, label in wanted if flag in flags]
    if found:
        return Support(True, f"this CPU has {' and '.join(found)}")
    lacking = " or ".join(label for _, label in _X86_FLAGS[dtype])
    return Support(False, f"this CPU has no {lacking}: {dtype} is emulated in float32")


def cpu_flags() -> frozenset[str]:
    """Return the CPU's feature flags as Linux names them; what torch itself knows elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _flags_from_torch()
    lines = [line for line in text.splitlines() if line.startswith(("flags", "Features"))]
    return frozenset(lines[0].partition(":")[2].split()) if lines else _flags_from_torch()


def _flags_from_torch() -> frozenset[str]:
    probe = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return frozenset({"avx512_bf16"} if probe is not None and probe() else ())


def default_policy(wanted: str | None) -> tuple[str, str]:
    """Return the preset that the device does best, and why."""
    device = pick_device(wanted)
    for dtype, preset in (("bfloat16", "mixed_bfloat16"), ("float16", "mixed_float16")):
        runs, helps = dtype_support(device, dtype)
        if runs and helps:
            return preset, helps.reason
    return "float32", dtype_support(device, "bfloat16")[1].reason


def _emulated(device: torch.device, policy: Policy, emulate: bool) -> bool:
    return policy.compute_dtype == "float8" and emulate and not float8_support(device)


def policy_support(device: torch.device, emulate: bool) -> dict[str, Support]:
    """Return preset → whether it runs on the device, and whether it helps; float8 emulated or not."""
    answers = {}
    for name, preset in PRESETS.items():
        runs, helps = dtype_support(device, preset.compute_dtype, emulate)
        gains = None if preset.compute_dtype == "float32" else helps.ok and not _emulated(device, preset, emulate)
        answers[name] = Support(True, helps.reason, gains) if runs else runs
    return answers
