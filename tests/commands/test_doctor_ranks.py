"""``unifiedamp doctor`` on training on several GPUs: launchers, libraries of communication, links."""

from __future__ import annotations

import importlib

import pytest

from unifiedamp.workloads import launchers

TOPOLOGY = """\
        \x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tSYS\tPIX\t0-47\t0\t\tN/A
GPU1\tNV18\t X \tPHB\tSYS\t0-47\t0\t\tN/A
GPU2\tSYS\tPHB\t X \tSYS\t48-95\t1\t\tN/A
NIC0\tPIX\tSYS\tSYS\t X

Legend:
  NV#  = Connection traversing a bonded set of # NVLinks
"""


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Return a function that puts an ``nvidia-smi`` in the place of this machine's."""

    def write(body):
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return write


def test_links_between_gpus(smi, tmp_path):
    (tmp_path / "topology").write_text(TOPOLOGY)
    smi(f"cat {tmp_path}/topology")
    pairs, reason = launchers.gpu_links()
    assert reason == ""
    assert [(each["gpus"], each["code"], each["link"]) for each in pairs] == [
        ([0, 1], "NV18", "NVLink"), ([0, 2], "SYS", "PCIe across sockets"), ([1, 2], "PHB", "PCIe"),
    ]  # fmt: skip


@pytest.mark.parametrize(("body", "said"), [("exit 9", "exit code 9"), ("exec sleep 60", "timed out after 0.2")])
def test_links_that_cannot_be_read(smi, body, said):
    smi(body)
    pairs, reason = launchers.gpu_links(seconds=0.2)
    assert pairs == []
    assert said in reason


def test_what_started_this_process():
    variables = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "7"}
    found = launchers.launched_by({**variables, "HOME": "/"})
    assert found == {"launcher": "torchrun", "rank": 1, "size": 4, "variables": variables}
    assert launchers.launched_by({"HOME": "/"}) is None
    dmlc = {"DMLC_ROLE": "server", "DMLC_PS_ROOT_URI": "a", "DMLC_PS_ROOT_PORT": "1", "DMLC_NUM_WORKER": "2"}
    dmlc |= {"DMLC_NUM_SERVER": "1"}
    server = {"launcher": "launch.py", "rank": 0, "size": 2, "role": "server", "variables": dict(sorted(dmlc.items()))}
    assert launchers.launched_by(dmlc) == server
    assert "DMLC_NUM_SERVER is not set" in launchers.launched_by({**dmlc, "DMLC_NUM_SERVER": ""})["error"]
    assert "RANK must be a whole number" in launchers.launched_by({"RANK": "x", "WORLD_SIZE": "4"})["error"]


def test_ranks_are_shown(command, monkeypatch, examined, smi):
    smi("exit 0")
    assert launchers.find_launchers()["srun"] is None
    gpus = [{"name": "G", "memory": 0, "compute_capability": (9, 0), "tensor_cores": ()}] * 2
    links = {"pairs": [{"gpus": [0, 1], "code": "NV18", "link": "NVLink"}], "reason": ""}
    inside = {"launcher": "srun", "rank": 1, "size": 2, "variables": {"SLURM_PROCID": "1"}}
    shown = {**examined, "gpus": gpus, "links": links, "launched_by": inside, "launchers": {"srun": None, "ray": "x"}}
    monkeypatch.setattr(importlib.import_module("unifiedamp.cli.doctor"), "examine", lambda *_: shown)
    out = command("doctor").out
    assert "launchers: ray; not installed: srun" in out
    assert "started by srun: rank 1 of 2 (SLURM_PROCID=1)" in out
    assert "links between GPUs: 0-1 NVLink (NV18)" in out
    inside.update(launcher="launch.py", role="scheduler", variables={"DMLC_ROLE": "scheduler"})
    assert "started by launch.py: scheduler of 2 workers (DMLC_ROLE=scheduler)" in command("doctor").out


def test_communication_is_told(examined, backend):
    found = examined["backends"][backend]["communication"]
    assert found
    if backend == "torch":
        assert found["gloo"] == "available"
