"""The processes of ``torch.distributed`` that train a workload together."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from unifiedamp.backend import Launch, Ranks, errors

from ..device.selection import pick_device
from .wrapped import is_shared

LOST = ("gloo/transport", "ncclRemoteError")
"""What errors of connections hold, which have no class."""


class LaunchedRanks(Ranks):
    """The default process group; plain numbers go through a group of CPUs, beside the device's work.

    Args:
        device: this process's.
    """

    def __init__(self, device: torch.device) -> None:
        self.rank, self.size, self._device = dist.get_rank(), dist.get_world_size(), device
        self._group: Any = dist.new_group(backend="gloo") if dist.get_backend() != "gloo" else dist.group.WORLD
        self._asked: tuple[torch.Tensor, Any] | None = None

    def wrap(self, model: Any) -> Any:
        """Return the model in ``DistributedDataParallel``; as it is where the workload wrapped or sharded it itself."""
        if is_shared(model):
            return model
        return DistributedDataParallel(model.to(self._device))

    def largest(self, number: int) -> int:
        before, own = self._asked, torch.tensor(number)
        self._asked = own, dist.all_reduce(own, dist.ReduceOp.MAX, self._group, async_op=True)
        return _read(before) if before else 0

    def mean(self, values: Any) -> Any:
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total, group=self._group)
        return (total / self.size).numpy()

    def differing(self, value: str) -> int | None:
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, self._group)
        return next((rank for rank, each in enumerate(found) if each != found[0]), None)

    def lost(self, error: Exception) -> str | None:
        """Neither gloo nor NCCL says which process it was."""
        known = isinstance(error, (dist.DistNetworkError, dist.DistStoreError))
        known = known or (isinstance(error, RuntimeError) and any(each in str(error) for each in LOST))
        return f"another of the {self.size} processes (rank {self.rank} lost its connection to it)" if known else None

    def leave(self) -> None:
        if self._asked:
            _read(self._asked)
        dist.barrier(self._group)
        keep_gloo_group()
        dist.destroy_process_group()


_left: list[Any] = []


def keep_gloo_group() -> None:
    """Keep the default group of gloo alive, before ``destroy_process_group``.

    ``DistributedDataParallel``'s reducer would destroy it when it is collected, and join gloo's threads while it holds
    Python's global lock. A thread that has just finished a barrier waits for that lock to free its tensor: a deadlock.
    """
    if dist.get_backend() == "gloo":
        _left.append(dist.group.WORLD)


def _read(asked: tuple[torch.Tensor, Any]) -> int:
    number, work = asked
    work.wait()
    return int(number)


def join(launch: Launch, wanted: str | None) -> tuple[LaunchedRanks, str]:
    """Join the process group; see ``Backend.join``."""
    device = _device(launch, wanted)
    if not dist.is_initialized():
        _meet(launch, "nccl" if device.type == "cuda" else "gloo")
    return LaunchedRanks(device), str(device)


def _device(launch: Launch, wanted: str | None) -> torch.device:
    """Return this process's device; of GPUs, the one with its number on this host."""
    device = pick_device(wanted)
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise errors.UnsupportedError(f"train: several processes train on CPUs or CUDA devices, not on {wanted!r}")
    if wanted is not None and torch.device(wanted).index is not None:
        raise errors.ConfigError(
            f"train: device {wanted!r} is one GPU, and {launch.launcher} started {launch.size} processes; write "
            "'cuda': each takes the GPU of its number on the host"
        )
    count = torch.cuda.device_count()
    if launch.local_rank >= count:
        raise errors.ConfigError(
            f"train: {launch.launcher} started process {launch.local_rank} of this host (from 0), which has {count} "
            "GPUs; start one process per GPU, or use --device cpu"
        )
    torch.cuda.set_device(launch.local_rank)
    return torch.device("cuda", launch.local_rank)


def _meet(launch: Launch, backend: str) -> None:
    where = "env://" if launch.address is None else f"tcp://{launch.address}"
    try:
        store, rank, size = next(rendezvous(where, launch.rank, launch.size))
        # torchrun's store outlives the processes that it starts anew, with the addresses of those before.
        store = PrefixStore(f"start_{launch.restarts}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    except (ValueError, RuntimeError) as error:  # an address that is missing, or that nothing answers at
        at = launch.address or "MASTER_ADDR and MASTER_PORT of the environment"
        raise errors.ConfigError(
            f"train: {launch.launcher} started {launch.size} processes, and this one cannot join them at {at}: {error}"
        ) from None
