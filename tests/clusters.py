"""Commands run by several processes of this host as TensorFlow's and MXNet's launchers start them, in a time limit."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

SECONDS = 180
"""How long all processes together may take."""


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in found]


def of_tensorflow(count: int = 2) -> list[dict[str, str]]:
    """Return the environments of the workers of one TF_CONFIG."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(count)]}
    tasks = [{"type": "worker", "index": index} for index in range(count)]
    return [{"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})} for task in tasks]


def of_mxnet(count: int = 2) -> list[dict[str, str]]:
    """Return the environments of the workers of a distributed kvstore, of its scheduler and of its server."""
    common = {
        "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(free_ports(1)[0]), "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": str(count), "DMLC_NODE_HOST": "127.0.0.1",
    }  # fmt: skip
    workers = [{**common, "DMLC_ROLE": "worker", "RANK": str(rank)} for rank in range(count)]
    return [*workers, *({**common, "DMLC_ROLE": role} for role in ("scheduler", "server"))]


@contextlib.contextmanager
def started(
    arguments: Sequence[str], environments: Sequence[Mapping[str, str]]
) -> Iterator[list[subprocess.Popen[str]]]:
    """Run Python with these arguments in every environment; what has not ended in the ``with`` block is killed."""
    common = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    processes = [
        subprocess.Popen(
            [sys.executable, *arguments], env={**common, **each}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )
        for each in environments
    ]  # fmt: skip
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=10)


def run_together(arguments: Sequence[str], environments: Sequence[Mapping[str, str]], waited: int) -> list[str]:
    """Return what the first ``waited`` processes of :func:`started` printed; the others are ended then."""
    end, said = time.monotonic() + SECONDS, []
    with started(arguments, environments) as processes:
        for process in processes[:waited]:
            said.append(process.communicate(timeout=max(1.0, end - time.monotonic())))
    assert [process.returncode for process in processes[:waited]] == [0] * waited, said
    return [output for output, _ in said]
