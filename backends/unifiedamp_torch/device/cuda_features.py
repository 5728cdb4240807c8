"""What a CUDA device's compute capability does well."""

from __future__ import annotations

import torch

from unifiedamp.backend import Support, errors

TF32_SINCE = (8, 0)
BFLOAT16_SINCE = (8, 0)
FLOAT8_SINCE = (8, 9)
ROWWISE_SINCE = (9, 0)
BLOCKS_ON, BLOCKS_CUDA = (9, 0), (12, 9)
GROUPED_ON = (9, 0)
TENSOR_CORES_SINCE = (7, 0)


def check_cuda(device: torch.device) -> torch.device:
    """Return the device with its index.

    Raises:
        ConfigError: there is no such CUDA device.
    """
    if not torch.cuda.is_available():
        built = "was built without CUDA" if torch.version.cuda is None else "finds no CUDA device"
        raise errors.ConfigError(f"device {str(device)!r}: torch {torch.__version__} {built}; use device='cpu'")
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise errors.ConfigError(f"device {str(device)!r}: there are {torch.cuda.device_count()} CUDA devices")
    return torch.device("cuda", index)


def cuda_dtype(device: torch.device, dtype: str) -> tuple[Support, Support]:
    """Return whether a 16-bit dtype runs on a CUDA device, and whether it is faster than float32 there."""
    capability, said = _described(device)
    if torch.version.hip is not None:
        return Support(True, said), Support(True, said)
    if dtype == "bfloat16" and capability < BFLOAT16_SINCE:
        reason = f"{said}: bfloat16 needs 8.0 or newer"
        return Support(False, reason), Support(False, reason)
    helps = capability >= TENSOR_CORES_SINCE
    return Support(True, said), Support(helps, f"{said}: {'Tensor Cores' if helps else 'no Tensor Cores'}")


def cuda_float8(device: torch.device) -> Support:
    """Return whether a CUDA device multiplies float8 matrices."""
    if torch.version.hip is not None:
        return Support(False, "float8 products have not been tried on ROCm")
    if torch.__version__ < (2, 5):  # type: ignore[operator]  # TorchVersion compares with tuples
        return Support(False, f"float8 products need torch 2.5 or newer, this is {torch.__version__}")
    capability, said = _described(device)
    if capability < FLOAT8_SINCE:
        return Support(False, f"{said}: float8 products need 8.9 or newer")
    return Support(True, f"{said}: float8 Tensor Cores")


def cuda_float8_recipe(device: torch.device, scaling: str) -> Support:
    """Return whether a CUDA device multiplies float8 matrices with the scales of a recipe."""
    runs = cuda_float8(device)
    if not runs or scaling in ("tensorwise", "delayed"):
        return runs
    capability, said = _described(device)
    if scaling == "rowwise":
        return Support(capability >= ROWWISE_SINCE, f"{said}: float8 products with scales of rows need 9.0 or newer")
    if not hasattr(torch.nn.functional, "scaled_mm"):
        return Support(False, f"float8 products of 128-blocks need torch 2.10 or newer, this is {torch.__version__}")
    cuda = tuple([int(part) for part in (torch.version.cuda or "0").split(".")[:2]])
    if capability != BLOCKS_ON or cuda < BLOCKS_CUDA:
        wants = "need compute capability 9.0 and CUDA 12.9 or newer"
        return Support(False, f"{said}, CUDA {torch.version.cuda}: torch's float8 products of 128-blocks {wants}")
    return Support(True, f"{said}: float8 Tensor Cores, scales of 128-blocks")


def cuda_float8_grouped(device: torch.device) -> Support:
    """Return whether a CUDA device runs ``grouped_mm`` in float8."""
    runs = cuda_float8(device)
    if not runs:
        return runs
    capability, said = _described(device)
    return Support(capability == GROUPED_ON, f"{said}: torch's grouped float8 product needs compute capability 9.0")


def cuda_tf32(device: torch.device, native: str) -> Support:
    """Return whether a CUDA device has TF32; ``native`` says how it is turned on."""
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < TF32_SINCE:
        return Support(False, f"{torch.cuda.get_device_name(device)} has no TF32, which came with 8.0")
    return Support(True, native)


def _described(device: torch.device) -> tuple[tuple[int, int], str]:
    major, minor = torch.cuda.get_device_capability(device)
    return (major, minor), f"{torch.cuda.get_device_name(device)}, compute capability {major}.{minor}"
