"""``MXNetProfiler``: why there is no role that times kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from unifiedamp.backend import Unsupported, errors

REASON = "MXNet's profiler names operators, not the device's kernels"


class MXNetProfiler(Unsupported):
    """Stands in the place of the role.

    ``mx.profiler`` times operators on the host's threads, and cuDNN's kernels have no names there; sums by operator
    would be wrong where an operator runs several kernels.
    """

    def __init__(self) -> None:
        super().__init__(REASON)

    def kernel_times(self, run: Callable[[], object]) -> NoReturn:
        raise errors.UnsupportedError(f"kernel_times: {self.reason}")
