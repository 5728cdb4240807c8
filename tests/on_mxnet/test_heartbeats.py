"""Processes of ``launch.py`` that are lost: who is found, and when; clocks and answers of MXNet are given."""

import socket
import threading

import pytest

from unifiedamp_mxnet.distributed import heartbeats
from unifiedamp_mxnet.distributed.heartbeats import SchedulerWatch, Silence, begin_heartbeats, nodes_of

CLUSTER = {"DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "1", "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": "9"}


def found(silent, times):
    """What is lost at each time, where ``silent(node, time)`` says of whom MXNet has heard nothing."""
    now = [0.0]
    watch = Silence(nodes_of(CLUSTER), lambda node, _seconds: silent(node, now[0]))
    answers = {}
    for now[0] in times:
        answers[now[0]] = watch.look(now[0])
    return answers


def test_a_process_that_stays_silent_is_named():
    answers = found(lambda node, now: node == 11 and now >= 30, range(0, 60, 3))
    assert {now for now, lost in answers.items() if lost} == set(range(45, 60, 3)), "20 s after its last heartbeat"
    assert answers[45] == ["worker 1"]
    assert found(lambda node, _: node == 8, [0, 30])[30] == ["server 0"]


def test_a_moment_of_silence_is_none():
    """All are silent until they have joined; one may send late."""
    answers = found(lambda node, now: now < 12 or (node == 9 and 20 <= now < 32), range(0, 60, 3))
    assert not any(answers.values())


@pytest.mark.parametrize("stopped", [False, True])
def test_a_worker_ends_when_the_scheduler_has_gone(monkeypatch, stopped):
    monkeypatch.setattr(heartbeats, "EVERY", 0.02)
    monkeypatch.setattr(heartbeats, "UNREACHABLE", 0.1)
    said, looks = [], []
    with socket.create_server(("127.0.0.1", 0)) as scheduler:
        place = {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(scheduler.getsockname()[1])}
        watch = SchedulerWatch("worker 1", place, said.append)
        reachable = heartbeats.reachable

        def look(*where):
            looks.append(reachable(*where))
            if len(looks) == 3:
                scheduler.close()
                if stopped:
                    watch.stop()
            return looks[-1]

        monkeypatch.setattr(heartbeats, "reachable", look)
        watch.run()
    assert looks[:3] == [True] * 3
    assert len(said) == (not stopped)
    assert stopped or said[0].startswith("train: worker 1 ends: the scheduler at 127.0.0.1:")


@pytest.mark.parametrize(
    ("given", "interval"),
    [
        ({}, None),
        ({"DMLC_ROLE": "worker"}, "3"),
        ({"DMLC_ROLE": "worker", "PS_HEARTBEAT_INTERVAL": "7"}, "7"),
        ({"DMLC_ROLE": "scheduler", "PS_HEARTBEAT_INTERVAL": "0"}, "0"),
    ],
)
def test_heartbeats_are_sent_by_processes_of_launch_py_alone(given, interval):
    """And not where they are turned off: such a scheduler watches no worker."""
    environment = {**CLUSTER, **given}
    threads = threading.active_count()
    begin_heartbeats(environment)
    assert environment.get("PS_HEARTBEAT_INTERVAL") == interval
    assert threading.active_count() == threads
