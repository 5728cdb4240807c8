"""Which GPU kernels multiply matrices, and which of those do it in Tensor Cores, recognized by their names.

The names are those of NVIDIA's libraries: cuBLAS and cuDNN say what instruction a kernel is built on (``h884``,
``s16816``, ``tensor16x8x16``, ``warpgroupsize`` for Hopper's), CUTLASS says ``tensorop``, ``simt`` or ``wmma``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

TENSOR, PLAIN, UNKNOWN = "tensor", "plain", "unknown"

PATTERNS: tuple[tuple[str, str], ...] = (
    # Without Tensor Cores; these first, for "sm80_xmma_gemm_..._ffma_..." and "cutlass_80_simt_sgemm" look like others.
    (PLAIN, r"_ffma_|simt|sgemm(?!_.*tensorop)|scudnn|dgemm|hgemm|gemv|gemmk1|gemmsn|winograd(?!.*884)"),
    # With Tensor Cores, by the instruction that the name gives.
    (TENSOR, r"^nvjet_|tensorop|wgmma|warpgroup|hmma|imma|wmma|tensor\d+x\d+x\d+|gmma"),
    (TENSOR, r"[a-z_](884|1688|16816|16832|8816|16864)(gemm|cudnn|fprop|dgrad|wgrad|_|$)"),
    (TENSOR, r"flash_fwd|flash_bwd|fmha|sdpa.*flash"),
    # Without: cuDNN's older convolutions, and the frameworks' own.
    (PLAIN, r"implicit_convolve|explicit_convolve|wgrad_alg|dgrad_engine|dgrad2d|conv2d_c1_k1|convolve_common_engine"),
    (PLAIN, r"conv_depthwise|depthwiseconv|conv2d_grouped_direct|fft2d"),
    # Products by compilers that do not say.
    (UNKNOWN, r"triton_(tem_fused_)?(.*_)?(mm|bmm|addmm|conv)|gemm_fusion|xmma|gemm|conv2d|fprop|dgrad|wgrad"),
)
"""(what it is, pattern), tried in order on the lower-case name; no pattern: no matrix product or convolution."""

HELPERS = re.compile(
    r"splitkreduce|im2col|nchwtonhwc|nhwctonchw|memset|memcpy|computeoffsets|offsetskernel|reduce_kernel"
)
"""What comes with a product without multiplying anything."""


def kind(name: str) -> str | None:
    """Return ``TENSOR``, ``PLAIN`` or ``UNKNOWN`` of a kernel that multiplies matrices or convolves; None of others."""
    lower = name.lower()
    if HELPERS.search(lower):
        return None
    return next((found for found, pattern in PATTERNS if re.search(pattern, lower)), None)


def tensor_core_share(kernels: Mapping[str, float]) -> dict[str, Any]:
    """Return the share of matmul and convolution time that is spent in Tensor Core kernels, as plain values.

    Args:
        kernels: name → seconds.

    Returns:
        ``share`` (0 to 1, None when there is no such kernel), the seconds of each kind, and the longest kernels as
        ``[name, kind, seconds]``.
    """
    seconds = dict.fromkeys((TENSOR, PLAIN, UNKNOWN), 0.0)
    found = [(name, kind(name), time) for name, time in kernels.items()]
    products = sorted(((n, k, t) for n, k, t in found if k is not None), key=lambda one: -one[2])
    for _, each, time in products:
        seconds[each] += time
    total = sum(seconds.values())
    share = seconds[TENSOR] / total if total else None
    return {"share": share, "seconds": seconds, "longest": [list(one) for one in products[:10]]}
