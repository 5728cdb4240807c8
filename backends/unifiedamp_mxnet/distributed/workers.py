"""What the workers of a distributed kvstore decide together besides their gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from unifiedamp.backend import rank_settings

from .._types import Array, HostArray, Trainer
from ..mxnet_api import from_numpy, mx
from .distributed import connect, is_distributed
from .shared_kvstore import SharedKVStore

CONDITION_KEY, WRITTEN_KEY, SETTINGS_KEY, MESSAGES_KEY = 2**30, 2**30 + 1, 2**30 + 2, 2**30 + 2**8
"""Keys of the kvstore that no parameter has: a Trainer's are counted from 0, and all keys must be integers."""


def on_host(values: HostArray) -> Array:
    """Return numbers as a float32 array that a kvstore takes."""
    array: Array = from_numpy(values.astype(np.float32), mx.cpu()).as_nd_ndarray()
    return array


class WorkerFlags:
    """Joins flags over the workers of a Trainer's kvstore: each holds if it holds on any worker.

    Args:
        trainer: a ``gluon.Trainer``.
        key: of the kvstore.
    """

    def __init__(self, trainer: Trainer, key: int) -> None:
        self._trainer, self._key, self._initialized = trainer, key, False

    def any(self, flags: Sequence[bool]) -> Sequence[bool]:
        """Return which flags hold on any worker; all workers ask for as many, in the same step."""
        store = self._trainer._kvstore if connect(self._trainer) else None
        if store is None or store.num_workers == 1:
            return flags
        sent = on_host(np.array(flags))
        if not self._initialized:
            store.init(self._key, on_host(np.zeros(len(flags))))
            self._initialized = True
        store.push(self._key, sent)
        store.pull(self._key, out=sent)
        return [bool(each) for each in sent.asnumpy() > 0]


class WorkerNumbers:
    """Gathers numbers from all workers. Servers sum in float32, so a float64 number goes as two of these, and each
    worker's in places where the others send zeros.

    Args:
        store: a distributed kvstore; None for the process's, under keys of these numbers alone.
        first_key: of the store.
    """

    def __init__(self, store: Any = None, first_key: int = 0) -> None:
        self._store, self._first_key = SharedKVStore() if store is None else store, first_key
        self._keys: dict[int, int] = {}
        self._last: dict[int, Array] = {}

    def send(self, values: Any) -> Array:
        """Return what :meth:`read` waits for; all workers send as many float64 numbers."""
        store, own = self._store, np.asarray(values, np.float64)
        sent = np.zeros((store.num_workers, 2, len(own)), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            sent[store.rank, 0] = own
            sent[store.rank, 1] = np.where(np.isfinite(sent[store.rank, 0]), own - sent[store.rank, 0], 0.0)
        array = on_host(sent)
        if len(own) not in self._keys:
            self._keys[len(own)] = self._first_key + len(self._keys)
            store.init(self._keys[len(own)], on_host(np.zeros_like(sent)))
        if len(own) in self._last:
            # MXNet orders what is sent under one key by its arrays alone, and a server adds up what comes first.
            self._last[len(own)].wait_to_read()
        store.push(self._keys[len(own)], array)
        store.pull(self._keys[len(own)], out=array)
        self._last[len(own)] = array
        return array

    def read(self, pending: Array) -> HostArray:
        """Return the numbers of all workers, each a row."""
        found: HostArray = pending.asnumpy().astype(np.float64).sum(axis=1)
        return found

    def gather(self, values: Any) -> HostArray:
        """Send numbers and wait for those of the others."""
        return self.read(self.send(values))


class WorkerAgreement:
    """Compares the settings of the workers' sessions, in the first step of a Trainer with a distributed kvstore, and
    in the first after one of them loaded a state.

    Args:
        trainer: a ``gluon.Trainer``.
        settings: returns those of this worker's session.
    """

    def __init__(self, trainer: Trainer, settings: Callable[[], Mapping[str, str]]) -> None:
        self._trainer, self._settings, self._checked = trainer, settings, False
        self._numbers: WorkerNumbers | None = None

    def check(self, loaded: bool = False) -> None:
        """Refuse settings that differ between workers. Does nothing after the first call, unless a worker ``loaded`` a
        state; all workers call it then.

        Raises:
            PrepareError: on every worker, naming the setting.
        """
        store = self._trainer._kvstore
        if (self._checked and not loaded) or not is_distributed(self._trainer) or store.num_workers == 1:
            return
        if self._numbers is None:
            self._numbers = WorkerNumbers(store, SETTINGS_KEY)
        settings = self._settings()
        found = self._numbers.gather(rank_settings.checksums(settings))
        call = "amp.load_state_dict" if loaded else "amp.step"
        rank_settings.refuse_differing(settings, found, call, "worker")
        self._checked = True
