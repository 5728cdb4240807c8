"""Processes that a launcher starts to train together: what it says of this one, and what they do together."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError

USUAL_PORT = 29500
"""Where the processes meet, if nothing says so; torch's own default."""

DMLC = ("DMLC_ROLE", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER")
"""The variables that MXNet's ``launch.py`` gives each process."""
ROLES = ("worker", "server", "scheduler")


@dataclass(frozen=True)
class Launch:
    """One of several processes that a launcher started.

    Attributes:
        launcher: its name.
        rank: number of this process, from 0; MXNet's scheduler may number the workers of ``launch.py`` otherwise.
        size: how many there are; at least 2, or one worker of ``launch.py``, for which scheduler and servers wait.
        local_rank: number of this process on its host, from 0.
        address: "host:port" where they meet; None where the framework reads it from the environment itself.
        restarts: how often the launcher has started them anew.
        role: "worker"; or "server" or "scheduler" of ``launch.py``, which train nothing.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int = 0
    address: str | None = None
    restarts: int = 0
    role: str = "worker"


class Ranks:
    """The processes that train a workload together, as one of them sees them. This class is a process alone.

    Every method is called by all of them, in the same order.

    Attributes:
        rank: number of this process, from 0.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context in which model and optimizers are made."""
        return nullcontext()

    def step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return a training step (a batch, and the factor of its loss → the loss times the factor) as each of the
        processes calls it.
        """
        return step

    def wrap(self, model: Any) -> Any:
        """Return a model whose backward pass averages the gradients of all processes, with rank 0's weights."""
        return model

    def connect(self, optimizer: Any) -> None:
        """Let an optimizer of the wrapped model average gradients over the processes where the model does not; called
        before ``amp.prepare``.
        """

    def largest(self, number: int) -> int:
        """Return the largest of a small number; several processes return that of the call before, and do not wait."""
        return number

    def mean(self, values: Any) -> Any:
        """Return the mean of a float64 array over the processes."""
        return values

    def differing(self, value: str) -> int | None:
        """Return the first rank whose ``value`` is not that of rank 0; None where all are equal."""
        return None

    def lost(self, error: Exception) -> str | None:
        """Return which other process an error says was lost ("worker 1 of TF_CONFIG"); None for any other error.

        Unlike the other methods, one process alone calls it.
        """
        return None

    def leave(self) -> None:
        """Wait for the others, and part from them."""


def read_launch(environment: Mapping[str, str]) -> Launch | None:
    """Return what the environment of torchrun (or Kubeflow's ``PyTorchJob``), ``srun``, ``mpirun``, ``TF_CONFIG`` or
    MXNet's ``launch.py`` says of this process; None for a process alone.

    Args:
        environment: the process's.

    Raises:
        ConfigError: a variable is no number or out of range, or those of ``launch.py`` are incomplete.
    """
    for read in (_torchrun, _slurm, _mpirun, _tensorflow, _mxnet):
        found = read(environment)
        if found is not None and (found.size > 1 or read is _mxnet):
            if not 0 <= found.rank < found.size:
                raise ConfigError(f"{found.launcher}: rank {found.rank} of {found.size} processes is out of range")
            return found
    return None


def _torchrun(environment: Mapping[str, str]) -> Launch | None:
    if not environment.get("RANK") or not environment.get("WORLD_SIZE"):
        return None
    name = "torchrun" if "TORCHELASTIC_RUN_ID" in environment else "the launcher (RANK, WORLD_SIZE)"
    rank, size, local = _numbers(environment, "RANK", "WORLD_SIZE", "LOCAL_RANK")
    (restarts,) = _numbers(environment, "TORCHELASTIC_RESTART_COUNT")
    return Launch(name, rank, size, local, restarts=restarts)


def _slurm(environment: Mapping[str, str]) -> Launch | None:
    if not environment.get("SLURM_STEP_NUM_TASKS"):  # set in the processes of srun alone, not in a batch script
        return None
    rank, size, local = _numbers(environment, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
    (job,) = _numbers(environment, "SLURM_JOB_ID")
    host = environment.get("MASTER_ADDR") or _first_host(environment.get("SLURM_STEP_NODELIST", ""))
    # The port depends on the job id, so that jobs on one host do not collide.
    port = environment.get("MASTER_PORT") or USUAL_PORT + job % 10_000
    return Launch("srun", rank, size, local, f"{host}:{port}")


def _first_host(nodes: str) -> str:
    """Return the first host of SLURM's list: "gpu[03-05,07],login1" is gpu03 and others."""
    found = re.match(r"([^,\[]+)(?:\[([0-9]+)[^\]]*\]([^,]*))?", nodes)
    if not found:
        raise ConfigError(f"srun: SLURM_STEP_NODELIST {nodes[:200]!r} names no host; set MASTER_ADDR")
    return "".join(part or "" for part in found.groups())


def _mpirun(environment: Mapping[str, str]) -> Launch | None:
    if not environment.get("OMPI_COMM_WORLD_SIZE"):
        return None
    names = (f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK"))
    rank, size, local = _numbers(environment, *names)
    host, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT") or USUAL_PORT
    return Launch("mpirun", rank, size, local, f"{host}:{port}" if host else None)


def _tensorflow(environment: Mapping[str, str]) -> Launch | None:
    if not environment.get("TF_CONFIG"):
        return None
    try:
        found = json.loads(environment["TF_CONFIG"])
        cluster, task = found.get("cluster", {}), found.get("task", {})
        others = len(cluster.get("chief", ()))
        size = others + len(cluster.get("worker", ()))
        rank = int(task.get("index", 0)) + (others if task.get("type") == "worker" else 0)
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"TF_CONFIG cannot be read: {error}") from None
    return Launch("TF_CONFIG", rank, size)


def _mxnet(environment: Mapping[str, str]) -> Launch | None:
    role = environment.get("DMLC_ROLE")
    if not role and not environment.get("DMLC_PS_ROOT_URI"):
        return None
    missing = [name for name in DMLC if not environment.get(name)]
    if missing:
        raise ConfigError(
            f"launch.py: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set, and each worker, server "
            f"and scheduler needs {', '.join(DMLC)}: start all of them by launch.py, or unset DMLC_ROLE and "
            "DMLC_PS_ROOT_URI to train in one process"
        )
    if role not in ROLES:
        raise ConfigError(f"launch.py: DMLC_ROLE must be one of {', '.join(ROLES)}, got {str(role)[:40]!r}")
    for name in DMLC[2:]:
        if _numbers(environment, name)[0] < 1:
            raise ConfigError(f"launch.py: {name} must be at least 1, got {environment[name][:40]!r}")
    rank_of = "DMLC_WORKER_ID" if environment.get("DMLC_WORKER_ID") else "DMLC_TASK_ID"
    rank, size = _numbers(environment, rank_of, "DMLC_NUM_WORKER")
    return Launch("launch.py", rank if role == "worker" else 0, size, role=role)


def _numbers(environment: Mapping[str, str], *names: str) -> list[int]:
    """Return variables as numbers, 0 where they are not set."""
    found = []
    for name in names:
        text = environment.get(name) or "0"
        try:
            found.append(int(text))
        except ValueError:
            raise ConfigError(f"environment variable {name} must be a whole number, got {text[:40]!r}") from None
    return found
