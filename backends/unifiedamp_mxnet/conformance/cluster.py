"""Workers of a distributed kvstore on this host, with their scheduler and server, for the conformance kit.

MXNet reads its role when it is imported, so this module does not import it.
"""

from __future__ import annotations

import functools
import importlib
import os
import socket

from unifiedamp.conformance.ranks import RankProcesses

SECONDS = 180.0
"""How long the workers may work on one answer, their start included: each of the processes imports MXNet."""


@functools.cache
def workers(count: int) -> RankProcesses:
    """Return processes that are the workers of one cluster, each with one context."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
    beside = [functools.partial(serve, role, count, port) for role in ("scheduler", "server")]
    return RankProcesses(count, setup=functools.partial(join_cluster, port), seconds=SECONDS, beside=beside)


def set_environment(role: str, count: int, port: int) -> None:
    """Set what ``launch.py`` sets in a process of one host."""
    places = {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(port), "DMLC_NODE_HOST": "127.0.0.1"}
    os.environ.update(places, DMLC_ROLE=role, DMLC_NUM_WORKER=str(count), DMLC_NUM_SERVER="1")


def serve(role: str, count: int, port: int) -> None:
    """Be the scheduler or the server, which MXNet is while it is imported."""
    set_environment(role, count, port)
    importlib.import_module("unifiedamp_mxnet.mxnet_api")


def join_cluster(port: int, index: int, count: int, _folder: str) -> None:
    """Make this process the worker with that index."""
    set_environment("worker", count, port)
    os.environ["DMLC_WORKER_ID"] = str(index)
    importlib.import_module("unifiedamp_mxnet.distributed.shared_kvstore").native_kvstore()
