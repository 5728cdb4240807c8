"""What the workers of a distributed kvstore decide together besides their gradients."""

from __future__ import annotations

import numpy as np

from .._types import Trainer
from ..mxnet_api import from_numpy, mx
from .distributed import connect

CONDITION_KEY = 2**30
"""A key of the kvstore that no parameter has: a Trainer's are counted from 0, and all keys must be integers."""


class WorkerConditions:
    """Joins the conditions of ``amp.skip_if`` over the workers of a Trainer's kvstore.

    Args:
        trainer: a ``gluon.Trainer``.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer, self._initialized = trainer, False

    def any(self, condition: bool) -> bool:
        """Return whether a condition holds on any worker; all workers ask, in the same step."""
        store = self._trainer._kvstore if connect(self._trainer) else None
        if store is None or store.num_workers == 1:
            return condition
        flag = from_numpy(np.array([condition], np.float32), mx.cpu()).as_nd_ndarray()
        if not self._initialized:
            store.init(CONDITION_KEY, from_numpy(np.zeros(1, np.float32), mx.cpu()).as_nd_ndarray())
            self._initialized = True
        store.push(CONDITION_KEY, flag)
        store.pull(CONDITION_KEY, out=flag)
        return bool(flag.asnumpy()[0] > 0)
