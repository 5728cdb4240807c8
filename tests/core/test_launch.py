"""What launchers say of a process, read from their environment variables."""

import pytest
from typer.testing import CliRunner

import unifiedamp as ua
from unifiedamp.backend import Launch, Ranks, read_launch
from unifiedamp.cli import app
from unifiedamp.config import plugins

SLURM = {"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "20012"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
TWO = '{"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "task": {"type": "worker", "index": 1}}'


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        (TORCHRUN, Launch("torchrun", 1, 4, 1)),
        (TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "2"}, Launch("torchrun", 1, 4, 1, restarts=2)),
        (TORCHRUN | {"WORLD_SIZE": "1", "RANK": "0"}, None),
        ({"RANK": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "host"}, Launch("the launcher (RANK, WORLD_SIZE)", 2, 3)),
        ({"WORLD_SIZE": "3"}, None),
        (SLURM | {"SLURM_STEP_NODELIST": "gpu[03-05,07],login1"}, Launch("srun", 5, 8, 1, "gpu03:29512")),
        (SLURM | {"SLURM_STEP_NODELIST": "one"}, Launch("srun", 5, 8, 1, "one:29512")),
        (SLURM | {"SLURM_STEP_NODELIST": "n[1,3]-ib"}, Launch("srun", 5, 8, 1, "n1-ib:29512")),
        (SLURM | {"MASTER_ADDR": "head", "MASTER_PORT": "77"}, Launch("srun", 5, 8, 1, "head:77")),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),  # a batch script, outside srun
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "MASTER_ADDR": "a"},
            Launch("mpirun", 1, 2, 0, "a:29500"),
        ),
        ({"TF_CONFIG": TWO}, Launch("TF_CONFIG", 2, 3)),
        ({"TF_CONFIG": "{}"}, None),
        ({"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "2", "DMLC_WORKER_ID": "1"}, Launch("launch.py", 1, 2)),
        ({"DMLC_ROLE": "server", "DMLC_NUM_WORKER": "2"}, None),
    ],
)
def test_launchers_are_read(environment, expected):
    assert read_launch(environment) == expected


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (TORCHRUN | {"RANK": "first"}, "RANK must be a whole number, got 'first'"),
        (TORCHRUN | {"RANK": "4"}, "rank 4 of 4 processes is out of range"),
        (SLURM, "names no host; set MASTER_ADDR"),
        ({"TF_CONFIG": "{"}, "TF_CONFIG cannot be read"),
        ({"TF_CONFIG": '{"cluster": []}'}, "TF_CONFIG cannot be read"),
    ],
)
def test_a_variable_that_makes_no_sense_is_refused(environment, message):
    with pytest.raises(ua.ConfigError, match=message.replace("(", r"\(")):
        read_launch(environment)


def test_a_process_alone_decides_alone():
    ranks = Ranks()
    assert (ranks.rank, ranks.size, ranks.largest(15), ranks.differing("x")) == (0, 1, 15, None)


REFUSED = {
    "toy": "launch.py started 2 processes, and backend 'toy' trains",
    "tensorflow": "launch.py started 2 processes, and TensorFlow joins those of TF_CONFIG alone",
    "mxnet": "launch.py started 2 processes, and backend 'mxnet' trains",
}


@pytest.mark.parametrize("backend", REFUSED)
def test_a_backend_refuses_processes_that_it_cannot_join(backend):
    if not plugins.is_installed(backend):
        pytest.skip(f"{backend} is not installed")
    with pytest.raises(ua.UnsupportedError, match=REFUSED[backend]):
        plugins.load_backend(backend).join(Launch("launch.py", 0, 2), None)


@pytest.mark.parametrize("command", ["compare", "tune"])
def test_commands_that_start_processes_are_started_once(command, monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(app, [command, "my_model.py"])
    assert done.exit_code == 2
    assert f"{command}: torchrun started 4 processes" in " ".join(str(done.output).split())
