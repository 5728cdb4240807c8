"""Device traits: one table of what each kind of device has. A new kind of device is one row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from unifiedamp.backend import Support, errors

from .cpu_features import cpu_dtype
from .cuda_features import check_cuda, cuda_dtype, cuda_float8, cuda_float8_grouped, cuda_float8_recipe, cuda_tf32


def check_present(device: torch.device) -> torch.device:
    """Return the device.

    Raises:
        ConfigError: the device is not there.
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, NotImplementedError, AssertionError) as error:
        first = str(error).partition("\n")[0].partition(". ")[0]
        raise errors.ConfigError(f"device {str(device)!r} is not there: {first}; use device='cpu'") from None
    return device


def autocast_dtype(device: torch.device, _dtype: str) -> tuple[Support, Support]:
    """Return the answer for a device of which torch's autocast is all that is known."""
    answer = Support(True, f"torch's {device.type} autocast")
    return answer, answer


def no_float8(device: torch.device) -> Support:
    """Return that a device does not multiply float8 matrices."""
    return Support(False, f"float8 products need a GPU of compute capability 8.9 or newer, not {device.type}")


def no_float8_recipe(device: torch.device, _scaling: str) -> Support:
    """Return that a device does not multiply float8 matrices, whatever their scales."""
    return no_float8(device)


def no_tf32(device: torch.device, _native: str) -> Support:
    """Return that a device has no TF32."""
    return Support(False, f"TF32 is of NVIDIA's GPUs, and this session is on {device}")


@dataclass(frozen=True)
class DeviceTraits:
    """What a kind of device has. The defaults hold for any kind that torch has an autocast for.

    Attributes:
        check: returns the device with its index, or raises ``ConfigError`` where it is not there.
        dtype_support: whether a 16-bit dtype runs on a device, and whether it is faster than float32 there.
        float8: whether a device multiplies float8 matrices.
        float8_recipe: whether it does with the scales of a recipe.
        float8_grouped: whether a device runs ``grouped_mm`` in float8.
        tf32: whether a device has TF32.
        reads_without_sync: reading a value waits for nothing.
        asynchronous: it runs behind Python's back; copies to the host take pinned memory and an event.
        own_generator: it draws random numbers from another generator than the CPU's.
        autocast_key: the dispatch key of its autocast, where op overrides are registered; empty where they cannot be.
        casts_rnns_to_float16: its autocast runs recurrent layers in float16, whatever the region's dtype is.
        fused_optimizers: the classes of ``torch.optim`` with a fused kernel; None for all that take ``fused``.
        unfused_optimizers: classes of ``torch.optim`` that take ``fused`` and have no kernel here.
        fused_sgd: the fused kernel of SGD runs with a learning rate and a flag on the device.
        fused_float32_only: those of them that leave 16-bit parameters as they are.
        captures_graphs: whole steps can be captured in a CUDA graph.
        copy_streams: batches are copied from pinned memory on a dedicated CUDA stream.
        profiles_kernels: ``torch.profiler`` times its kernels, and its allocator counts peak memory.
        cudnn: cuDNN runs its convolutions.
        unscales_bfloat16: torch's kernel that checks and unscales gradients takes bfloat16.
        wide_dtype: the widest floating-point dtype, for counts and norms.
        slow_min_max: a norm is the fastest way to the largest magnitude; on a CPU ``aminmax`` is.
        bincount_waits: ``torch.bincount`` synchronizes, and ``torch.histc`` does not.
    """

    check: Callable[[torch.device], torch.device] = check_present
    dtype_support: Callable[[torch.device, str], tuple[Support, Support]] = autocast_dtype
    float8: Callable[[torch.device], Support] = no_float8
    float8_recipe: Callable[[torch.device, str], Support] = no_float8_recipe
    float8_grouped: Callable[[torch.device], Support] = no_float8
    tf32: Callable[[torch.device, str], Support] = no_tf32
    reads_without_sync: bool = False
    asynchronous: bool = True
    own_generator: bool = True
    autocast_key: str = ""
    casts_rnns_to_float16: bool = False
    fused_optimizers: frozenset[str] | None = frozenset()
    unfused_optimizers: frozenset[str] = frozenset()
    fused_float32_only: frozenset[str] = frozenset()
    fused_sgd: bool = False
    captures_graphs: bool = False
    copy_streams: bool = False
    profiles_kernels: bool = False
    cudnn: bool = False
    unscales_bfloat16: bool = False
    wide_dtype: torch.dtype = torch.float64
    slow_min_max: bool = True
    bincount_waits: bool = False


_FUSED = frozenset({"Adagrad", "Adam", "AdamW", "SGD"})

TRAITS: dict[str, DeviceTraits] = {
    "cpu": DeviceTraits(
        dtype_support=cpu_dtype,
        reads_without_sync=True,
        asynchronous=False,
        own_generator=False,
        autocast_key="AutocastCPU",
        fused_optimizers=_FUSED,
        fused_float32_only=frozenset({"SGD"}),
        unscales_bfloat16=True,
        slow_min_max=False,
    ),
    "cuda": DeviceTraits(
        check=check_cuda,
        dtype_support=cuda_dtype,
        float8=cuda_float8,
        float8_recipe=cuda_float8_recipe,
        float8_grouped=cuda_float8_grouped,
        tf32=cuda_tf32,
        autocast_key="AutocastCUDA",
        casts_rnns_to_float16=True,
        fused_optimizers=None,
        unfused_optimizers=frozenset({"Adagrad"}),
        fused_sgd=True,
        captures_graphs=True,
        copy_streams=True,
        profiles_kernels=True,
        cudnn=True,
        bincount_waits=True,
    ),
    "xpu": DeviceTraits(autocast_key="AutocastXPU", fused_optimizers=_FUSED),
    "mps": DeviceTraits(fused_optimizers=_FUSED, wide_dtype=torch.float32),
}
"""Device type → its traits."""

_ANY = DeviceTraits()


def traits(device: torch.device | str) -> DeviceTraits:
    """Return the traits of a device, or of a device type."""
    return TRAITS.get(device if isinstance(device, str) else device.type, _ANY)
