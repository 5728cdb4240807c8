"""Number formats as data.

``rounding``, ``block_rounding`` and ``scaling``, which import numpy, hold the reference of every backend's
rounding, bit for bit.
"""

from .blocks import BLOCK_FORMATS, BlockFormat
from .floats import FLOAT_FORMATS, LARGEST_SCALE, FloatFormat

__all__ = ["BLOCK_FORMATS", "FLOAT_FORMATS", "LARGEST_SCALE", "BlockFormat", "FloatFormat"]
