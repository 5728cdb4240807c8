"""``unifiedamp train`` as MXNet's ``launch.py`` starts it: one command in all roles, each in a process."""

import json
import socket
from pathlib import Path

import pytest
from clusters import free_ports, of_mxnet, run_together

import unifiedamp as ua
from unifiedamp_mxnet.distributed.launched import wait_for_scheduler

FILE = Path(__file__).parents[1] / "workloads" / "divided_gluon.py"


def test_workers_train_and_scheduler_and_server_end_with_them(tmp_path):
    folder = tmp_path / "run"
    words = ["-m", "unifiedamp", "train", f"{FILE}:Regression", "--backend", "mxnet", "--policy", "float32"]
    environments = of_mxnet()
    said = run_together([*words, "--epochs", "2", "--out", str(folder), "--json"], environments, len(environments))
    *workers, scheduler, server = said
    assert scheduler == server == ""
    first, second = (json.loads(each) for each in workers)
    assert first["steps"] == second["steps"] == 10
    assert [row["loss"] for row in first["epochs"]] == [row["loss"] for row in second["epochs"]]
    assert len(json.loads((folder / "log.json").read_text())["losses"]) == 10


def test_a_scheduler_that_does_not_answer_is_named():
    (port,) = free_ports(1)
    with pytest.raises(ua.ConfigError, match=f"no scheduler of launch.py answers at 127.0.0.1:{port} .*within 0.3 sec"):
        wait_for_scheduler("127.0.0.1", port, 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        wait_for_scheduler("127.0.0.1", listening.getsockname()[1], 0.3)
