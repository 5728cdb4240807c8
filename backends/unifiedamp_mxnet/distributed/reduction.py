"""The sum of gradients over contexts in another dtype than their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unifiedamp.backend import SessionSpec, errors

from .._types import Array, Trainer
from ..mxnet_api import cast, dtype_name, mx
from .distributed import allreduce, is_distributed, kvstore_name

DTYPES = ("float32", "bfloat16", "float16")
FIRST_KEY = 2**20
"""Above the numbers under which a Trainer keeps its parameters on the kvstore."""


def check_reduction(trainer: Trainer, spec: SessionSpec) -> None:
    """Refuse Trainers whose gradients cannot be summed in the session's ``reduce_dtype``.

    Raises:
        PrepareError: a distributed kvstore, sparse gradients, or master weights.
    """
    dtype = spec.reduce_dtype
    if dtype is None:
        return
    if is_distributed(trainer):
        raise errors.PrepareError(
            f"reduce_dtype={dtype!r}: the workers of kvstore {kvstore_name(trainer)!r} sum gradients in the dtype of "
            "the parameters; make the session without reduce_dtype"
        )
    if trainer._contains_sparse_grad:
        raise errors.PrepareError(
            f"reduce_dtype={dtype!r}: the Trainer has row_sparse gradients, which MXNet sums in their own dtype; make "
            "the session without reduce_dtype, or use dense gradients"
        )
    if spec.master_weights and dtype != "float32":
        raise errors.PrepareError(
            f"reduce_dtype={dtype!r}: with master_weights=True gradients are summed in float32; leave reduce_dtype out"
        )


def sum_of(trainer: Trainer, reduce_dtype: str | None) -> Callable[[], None]:
    """Return what sums the gradients of a Trainer over its contexts and workers."""
    if reduce_dtype is None:
        return lambda: allreduce(trainer)
    return LowPrecisionSum(trainer, reduce_dtype)


class LowPrecisionSum:
    """Casts the gradients of a Trainer, sums them on its kvstore under separate keys, and casts the sums back.

    Args:
        trainer: one that :func:`check_reduction` accepts.
        dtype: in which they are summed.
    """

    def __init__(self, trainer: Trainer, dtype: str) -> None:
        self._trainer, self._dtype = trainer, dtype
        self._keys: set[int] = set()

    def __call__(self) -> None:
        if self._trainer._kvstore:
            for place, param in enumerate(self._trainer._params):
                if param._grad is not None:
                    self._sum(place, param._grad)

    def _sum(self, place: int, grads: Sequence[Array]) -> None:
        low = [cast(grad, self._dtype) for grad in grads]
        self._trainer._kvstore.pushpull(self._key(place, low[0]), low, priority=-place)
        for grad, total in zip(grads, low, strict=True):
            grad[:] = cast(total, dtype_name(grad))

    def _key(self, place: int, like: Array) -> int:
        key = FIRST_KEY * (1 + DTYPES.index(self._dtype)) + place
        if key not in self._keys:
            try:
                self._trainer._kvstore.init(key, like)
            except mx.base.MXNetError as error:
                if "duplicate init" not in str(error):  # by an earlier session
                    raise
            self._keys.add(key)
        return key
