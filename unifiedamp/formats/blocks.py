"""Block formats: small numbers that share a scale with their neighbours along a product's summed dimension.

Sources: the OCP Microscaling Formats (MX) Specification 1.0, sections 5 and 6 (MXFP8, MXFP6, MXFP4, MXINT8: a
power-of-two scale, E8M0, for 32 numbers), and NVIDIA's description of NVFP4 in Transformer Engine and cuDNN (an E4M3
scale for 16 numbers of E2M1 and one float32 scale for the tensor). "int8" is symmetric per-block int8, whole numbers
from -127 to 127 with the float32 scale amax / 127.
"""

from __future__ import annotations

from dataclasses import dataclass

from .floats import FLOAT_FORMATS, FloatFormat


@dataclass(frozen=True)
class BlockFormat:
    """Elements of a small format with one scale per block.

    Attributes:
        name: of the format.
        element: of the numbers in a block.
        size: numbers per block.
        scale: "e8m0", a power of two; "e4m3", which a float32 scale of the whole tensor multiplies; or "float32".
    """

    name: str
    element: FloatFormat
    size: int
    scale: str


BLOCK_FORMATS: dict[str, BlockFormat] = {
    name: BlockFormat(name, FLOAT_FORMATS[element], size, scale)
    for name, element, size, scale in (
        ("mxfp8_e4m3", "float8_e4m3fn", 32, "e8m0"),
        ("mxfp8_e5m2", "float8_e5m2", 32, "e8m0"),
        ("mxfp6_e2m3", "float6_e2m3fn", 32, "e8m0"),
        ("mxfp6_e3m2", "float6_e3m2fn", 32, "e8m0"),
        ("mxfp4", "float4_e2m1fn", 32, "e8m0"),
        ("mxint8", "int8", 32, "e8m0"),
        ("nvfp4", "float4_e2m1fn", 16, "e4m3"),
        ("int8", "int8", 32, "float32"),
    )
}
"""Name → format."""
