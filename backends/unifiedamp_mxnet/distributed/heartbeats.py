"""Processes of ``launch.py`` that are lost: MXNet waits for them without end, so the others end by themselves.

Workers and servers send heartbeats to the scheduler, as MXNet does where ``PS_HEARTBEAT_INTERVAL`` is set. The
scheduler names a process that stays silent, and ends; workers and servers end when they no longer reach it. Nothing
here imports MXNet, which serves in a scheduler or server while it is imported.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, NoReturn

INTERVAL = "PS_HEARTBEAT_INTERVAL"
EVERY = 3
"""Seconds between heartbeats, and between looks."""
SILENCE = 20.0
"""Seconds without heartbeats after which a process is lost."""
UNREACHABLE = 10.0
"""Seconds after which the scheduler is lost."""
ADVICE = "start all processes of launch.py again, with --resume to go on from the last checkpoint"

FIRST_SERVER, FIRST_WORKER, STRIDE = 8, 9, 2
"""Numbers of nodes in MXNet: servers have the even ones, workers the odd ones."""


def send_heartbeats(environment: MutableMapping[str, str]) -> bool:
    """Make MXNet send heartbeats, which it looks up when it makes its kvstore; return False where they are turned off.

    Args:
        environment: of this process.
    """
    return environment.setdefault(INTERVAL, str(EVERY)) not in ("", "0")


def begin_heartbeats(environment: MutableMapping[str, str]) -> None:
    """Make a process of ``launch.py`` send heartbeats; a scheduler or server watches the others, in a thread. Call it
    before MXNet is imported.
    """
    role = environment.get("DMLC_ROLE")
    if role is not None and send_heartbeats(environment) and role != "worker":
        watch = _watch_all if role == "scheduler" else _watch_from_server
        threading.Thread(target=watch, args=(dict(environment),), daemon=True).start()


class SchedulerWatch:
    """Ends this process when it reaches the scheduler no more.

    Args:
        name: of this process, for the message.
        environment: of ``launch.py``.
        end: called with the message.
    """

    def __init__(self, name: str, environment: Mapping[str, str], end: Callable[[str], object]) -> None:
        self._name, self._end, self._stopped = name, end, threading.Event()
        self._host, self._port = _scheduler(environment)

    def start(self) -> None:
        """Watch in a thread."""
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        """Watch, once the scheduler has been reached, until :meth:`stop`."""
        reached: float | None = None
        while not self._stopped.wait(EVERY):
            if reachable(self._host, self._port):
                reached = time.monotonic()
            elif reached is not None and time.monotonic() - reached > UNREACHABLE:
                self._end(
                    f"train: {self._name} ends: the scheduler at {self._host}:{self._port} has ended, as it does when "
                    f"it hears no more of a process, which its message names; {ADVICE}"
                )
                return

    def stop(self) -> None:
        """Watch no longer. Idempotent."""
        self._stopped.set()


class Silence:
    """Finds nodes that have sent no heartbeat for :data:`SILENCE` seconds of looking.

    Args:
        nodes: number of a node → its name.
        is_silent: returns whether a node's last heartbeat is older than some seconds.
    """

    def __init__(self, nodes: Mapping[int, str], is_silent: Callable[[int, int], bool]) -> None:
        self._nodes, self._is_silent = nodes, is_silent
        self._since: dict[int, float] = {}

    def look(self, now: float) -> list[str]:
        """Return the names of those that are lost.

        Args:
            now: a time in seconds.
        """
        late = 2 * EVERY + 1
        for node in self._nodes:
            if self._is_silent(node, late):
                self._since.setdefault(node, now - late)
            else:
                self._since.pop(node, None)
        # MXNet calls all silent for a moment while they join: its answer must last.
        return [self._nodes[node] for node, since in self._since.items() if now - since >= SILENCE]


def reachable(host: str, port: int) -> bool:
    """Return whether something listens there."""
    try:
        socket.create_connection((host, port), timeout=EVERY).close()
    except OSError:
        return False
    return True


def end_process(message: str) -> NoReturn:
    """Say why on standard error, and end this process at once: its main thread waits in MXNet."""
    print(f"unifiedamp: {message}", file=sys.stderr, flush=True)
    os._exit(1)


def _scheduler(environment: Mapping[str, str]) -> tuple[str, int]:
    return environment["DMLC_PS_ROOT_URI"], int(environment["DMLC_PS_ROOT_PORT"])


def _watch_from_server(environment: Mapping[str, str]) -> None:
    SchedulerWatch("a server", environment, end_process).run()


def _watch_all(environment: Mapping[str, str]) -> None:
    while not reachable(*_scheduler(environment)):  # itself: MXNet has begun then
        time.sleep(EVERY)
    library: Any = sys.modules["mxnet.base"]._LIB
    store = ctypes.c_void_p()
    library.MXKVStoreCreate(b"dist", ctypes.byref(store))

    def is_silent(node: int, seconds: int) -> bool:
        count = ctypes.c_int()
        failed = library.MXKVStoreGetNumDeadNode(store, ctypes.c_int(node), ctypes.byref(count), ctypes.c_int(seconds))
        return not failed and count.value > 0

    silence = Silence(nodes_of(environment), is_silent)
    while not (lost := silence.look(time.monotonic())):
        time.sleep(EVERY)
    end_process(
        f"train: {' and '.join(lost)} of launch.py sent no heartbeat for {SILENCE:g} seconds: it was killed, or its "
        f"host cannot be reached; the other processes end too, and {ADVICE}"
    )


def nodes_of(environment: Mapping[str, str]) -> dict[int, str]:
    """Return number → name of the processes that send heartbeats; workers as the kvstore numbers them."""
    workers, servers = int(environment["DMLC_NUM_WORKER"]), int(environment["DMLC_NUM_SERVER"])
    found = {FIRST_WORKER + STRIDE * rank: f"worker {rank}" for rank in range(workers)}
    return found | {FIRST_SERVER + STRIDE * rank: f"server {rank}" for rank in range(servers)}
