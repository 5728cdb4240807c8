"""Number formats as data, and rounding to them: the reference that every backend's rounding equals bit for bit."""

from .blocks import BLOCK_FORMATS, BlockFormat, round_blocks
from .floats import FLOAT_FORMATS, FloatFormat
from .rounding import LARGEST_SCALE, round_scaled, round_to

__all__ = [
    "BLOCK_FORMATS",
    "FLOAT_FORMATS",
    "LARGEST_SCALE",
    "BlockFormat",
    "FloatFormat",
    "round_blocks",
    "round_scaled",
    "round_to",
]
