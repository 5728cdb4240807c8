# mypy: disallow-subclassing-any=False, warn-return-any=False
"""The one distributed kvstore that a process can make, shared by its Trainers."""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import sys
import threading
from typing import Any

from .._types import Array
from ..mxnet_api import mx
from .heartbeats import SchedulerWatch, end_process, send_heartbeats

KEYS = 2**16
"""How far the keys of two users of the kvstore are apart; all must be integers below 2**31."""
PARTING = 10.0
"""Seconds for which a worker that failed waits for the others to end too."""
_count = itertools.count()


@functools.cache
def native_kvstore() -> Any:
    """Return this process's ``dist_sync`` kvstore; MXNet hangs where a second one is made."""
    return process_kvstore().native


@functools.cache
def process_kvstore() -> ProcessKVStore:
    """Return the kvstore that this process makes, made by the first call."""
    return ProcessKVStore()


class ProcessKVStore:
    """Makes this process a worker, and frees the kvstore when the process ends.

    Attributes:
        native: the kvstore.
        left: whether this worker has parted from the others in agreement; others wait for it without end until then.
    """

    def __init__(self) -> None:
        watched = send_heartbeats(os.environ)
        self.native: Any = mx.kvstore.create("dist_sync")
        self.left = False
        self._watch = SchedulerWatch(f"worker {self.native.rank}", os.environ, end_process)
        if watched:
            self._watch.start()
        atexit.register(self._free)

    def _free(self) -> None:
        """Wait for the other workers and tell the servers to end, while MXNet is still there to do it."""
        self._watch.stop()
        handle, self.native.handle = self.native.handle, None
        if self.left:
            mx.base.check_call(mx.base._LIB.MXKVStoreFree(handle))
            return
        freeing = threading.Thread(target=mx.base._LIB.MXKVStoreFree, args=(handle,), daemon=True)
        freeing.start()
        freeing.join(PARTING)
        if freeing.is_alive():  # it holds up the process's end, and the others train on
            sys.stdout.flush()
            end_process(
                f"train: this worker has failed, and ends without the others, which did not within {PARTING:g} s"
            )


class SharedKVStore(mx.kvstore.KVStoreBase):
    """The process's distributed kvstore under keys of one user, a Trainer or another; all workers make them in the
    same order.
    """

    def __init__(self) -> None:
        self._store, self._first = native_kvstore(), KEYS * next(_count)

    type = property(lambda self: self._store.type)
    rank = property(lambda self: self._store.rank)
    num_workers = property(lambda self: self._store.num_workers)

    def is_capable(self, capability: str) -> bool:
        """Return what the kvstore can do; updates are the Trainer's, whose optimizer the servers cannot share."""
        return capability != self.OPTIMIZER and self._store.is_capable(capability)

    def init(self, key: int, value: Array) -> None:
        """Make a key, on all workers together."""
        self._store.init(self._first + key, value)

    def broadcast(self, key: int, value: Any, out: Any, priority: int = 0) -> None:
        """Make a key with rank 0's value, and return it in ``out``."""
        self._store.broadcast(self._first + key, value, out, priority)

    def push(self, key: int, value: Any, priority: int = 0) -> None:
        """Send a value for the sum over the workers."""
        self._store.push(self._first + key, value, priority)

    def pull(self, key: int, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Return the sum in ``out``."""
        self._store.pull(self._first + key, out, priority, ignore_sparse)

    def pushpull(self, key: int, value: Any, out: Any = None, priority: int = 0) -> None:
        """Send a value, and return the sum in ``out`` or in its place."""
        self._store.pushpull(self._first + key, value, out, priority)
