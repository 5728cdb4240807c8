"""What launchers say of a process, read from their environment variables."""

import sys

import pytest
from typer.testing import CliRunner

import unifiedamp as ua
from unifiedamp.backend import Launch, Ranks, read_launch
from unifiedamp.cli import app
from unifiedamp.config import plugins
from unifiedamp.workloads.configuration import read_settings, read_source
from unifiedamp.workloads.training.job import Job
from unifiedamp.workloads.training.on_ray import train_on_ray

SLURM = {"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "20012"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
DMLC = {
    "DMLC_ROLE": "worker", "DMLC_PS_ROOT_URI": "10.0.0.1", "DMLC_PS_ROOT_PORT": "9091", "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "1",
}  # fmt: skip
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
        ({"RANK": "2"}, None),
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
        ({"TF_CONFIG": TWO.replace('"worker", "index": 1', '"chief", "index": 0')}, Launch("TF_CONFIG", 0, 3)),
        ({"TF_CONFIG": "{}"}, None),
        (DMLC | {"DMLC_WORKER_ID": "1"}, Launch("launch.py", 1, 2)),
        (DMLC | {"DMLC_TASK_ID": "1"}, Launch("launch.py", 1, 2)),
        (DMLC | {"DMLC_NUM_WORKER": "1"}, Launch("launch.py", 0, 1)),  # scheduler and server wait for it
        (DMLC | {"DMLC_ROLE": "server", "DMLC_TASK_ID": "7"}, Launch("launch.py", 0, 2, role="server")),
        (DMLC | {"DMLC_ROLE": "scheduler"}, Launch("launch.py", 0, 2, role="scheduler")),
        ({"DMLC_NUM_WORKER": "2", "DMLC_TASK_ID": "1"}, None),  # of XGBoost's tracker
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
        (
            {"DMLC_ROLE": "server"},
            "launch.py: DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT, DMLC_NUM_WORKER, DMLC_NUM_SERVER are",
        ),
        (DMLC | {"DMLC_ROLE": ""}, "launch.py: DMLC_ROLE is not set, and each worker, server and scheduler needs"),
        (DMLC | {"DMLC_ROLE": "master"}, "DMLC_ROLE must be one of worker, server, scheduler, got 'master'"),
        (DMLC | {"DMLC_NUM_SERVER": "0"}, "DMLC_NUM_SERVER must be at least 1, got '0'"),
        (DMLC | {"DMLC_PS_ROOT_PORT": "x"}, "DMLC_PS_ROOT_PORT must be a whole number, got 'x'"),
        (DMLC | {"DMLC_WORKER_ID": "2"}, "launch.py: rank 2 of 2 processes is out of range"),
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
    "mxnet": "launch.py started 2 processes, and MXNet joins only processes that its launch.py started",
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


def train(*words):
    done = CliRunner().invoke(app, ["train", "my_model.py", *words])
    return done.exit_code, " ".join(str(done.output).split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--workers", "2"], "--workers is of --launcher: pass --launcher ray too"),
        (["--max-restarts", "2"], "--max-restarts is of --launcher"),
        (["--launcher", "rey"], "unknown 'rey'; did you mean 'ray'?"),
    ],
)
def test_options_of_a_launcher_that_make_no_sense_are_refused(words, said):
    code, output = train(*words)
    assert code == 2
    assert said in output


def job(folder, backend):
    file = folder / "my_model.py"
    file.write_text("class Model:\n    pass\n")
    return Job(read_settings(read_source(str(file)), folder / "run", amp={"backend": backend}))


def test_ray_starts_the_processes_itself(tmp_path, monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ua.ConfigError, match="ray starts the processes, and torchrun started this one"):
        train_on_ray(job(tmp_path, "toy"), 2, 0)


def test_ray_needs_a_trainer_for_the_backend_and_an_extra(tmp_path, monkeypatch):
    with pytest.raises(ua.UnsupportedError, match="backend 'toy' has no trainer"):
        train_on_ray(job(tmp_path, "toy"), 2, 0)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(plugins.load_backend("toy"), "ray_trainer", "ray.train.torch:TorchTrainer")
    with pytest.raises(ua.UnsupportedError, match=r"pip install 'ray\[train\]>=2.60'"):
        train_on_ray(job(tmp_path, "toy"), 2, 0)
