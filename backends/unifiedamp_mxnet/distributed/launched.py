"""The workers of a distributed kvstore that train a workload together."""

from __future__ import annotations

import os
import socket
import time
import zlib
from collections.abc import Callable
from typing import Any

from unifiedamp.backend import Launch, Ranks, errors

from .._types import Array
from ..device.selection import resolve_context
from ..mxnet_api import gluon, mx
from .distributed import kvstore_name
from .shared_kvstore import SharedKVStore, process_kvstore
from .workers import WorkerNumbers

SECONDS = 60.0
"""How long a worker waits for its scheduler to begin."""


class LaunchedRanks(Ranks):
    """The workers of this process's ``dist_sync`` kvstore, which numbers them."""

    def __init__(self) -> None:
        self._weights, self._numbers = SharedKVStore(), WorkerNumbers()
        self.rank, self.size = self._weights.rank, self._weights.num_workers
        self._asked: Array | None = None

    def step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return the step with its loss divided by the number of workers, over which gradients are summed."""

        def train_step(batch: Any, factor: float = 1.0) -> Any:
            return step(batch, factor / self.size) * self.size

        return train_step

    def wrap(self, model: Any) -> Any:
        """Give the model rank 0's weights, and return it.

        Raises:
            ConfigError: it has parameters without a shape, which each worker would initialize by itself.
        """
        params = list(model.collect_params().values())
        without = [param.name for param in params if param._data is None]
        if without:
            raise errors.ConfigError(
                f"train: {errors.first_names(without)} of the model have no shape or values before the first batch, "
                "and all workers begin with the same weights: initialize the model in make_model, and give its layers "
                "in_units or in_channels, or call it once there"
            )
        for key, param in enumerate(params):
            self._weights.broadcast(key, param.list_data()[0], param.list_data())
        for param in params:
            param.list_data()[0].wait_to_read()
        return model

    def connect(self, optimizer: Any) -> None:
        """Let a Trainer sum its gradients over the workers.

        Raises:
            ConfigError: it has made its kvstore already.
        """
        if not isinstance(optimizer, gluon.Trainer):
            return  # amp.prepare refuses it
        if optimizer._kv_initialized:
            raise errors.ConfigError(
                "train: the Trainer of make_optimizer has made its kvstore already; return one that has made no step"
            )
        if "async" not in kvstore_name(optimizer) and kvstore_name(optimizer) not in ("horovod", "byteps"):
            optimizer._kvstore_params["kvstore"] = SharedKVStore()

    def largest(self, number: int) -> int:
        before, self._asked = self._asked, self._numbers.send([number])
        return 0 if before is None else int(self._numbers.read(before).max())

    def mean(self, values: Any) -> Any:
        return self._numbers.gather(values).mean(axis=0) if len(values) else values

    def differing(self, value: str) -> int | None:
        found = self._numbers.gather([zlib.crc32(value.encode())])[:, 0]
        return next((rank for rank, each in enumerate(found) if each != found[0]), None)

    def leave(self) -> None:
        self._numbers.gather([0.0])
        process_kvstore().left = True


def join(launch: Launch, wanted: str | None) -> tuple[LaunchedRanks, str]:
    """Join the workers of ``launch.py``; see ``Backend.join``."""
    if os.environ.get("DMLC_ROLE") != "worker":
        raise errors.UnsupportedError(
            f"train: {launch.launcher} started {launch.size} processes, and MXNet joins only processes that its "
            "launch.py started, which sets DMLC_ROLE and other variables in each of them"
        )
    if not mx.runtime.Features().is_enabled("DIST_KVSTORE"):
        raise errors.UnsupportedError(
            f"train: {launch.launcher} started {launch.size} processes, and this build of MXNet has no distributed "
            "kvstore (DIST_KVSTORE)"
        )
    device = str(resolve_context(wanted))
    wait_for_scheduler(os.environ["DMLC_PS_ROOT_URI"], int(os.environ["DMLC_PS_ROOT_PORT"]), SECONDS)
    return LaunchedRanks(), device


def wait_for_scheduler(host: str, port: int, seconds: float) -> None:
    """Wait until something listens there: MXNet itself waits without end.

    Args:
        host, port: of the scheduler.
        seconds: how long.

    Raises:
        ConfigError: nothing does.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            with socket.create_connection((host, port), timeout=max(0.1, end - time.monotonic())):
                return
        except OSError as error:
            if time.monotonic() > end:
                raise errors.ConfigError(
                    f"train: no scheduler of launch.py answers at {host}:{port} (DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT) "
                    f"within {seconds:g} seconds: {error}"
                ) from None
            time.sleep(0.1)
