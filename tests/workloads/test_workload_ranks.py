"""A workload on several processes trains as on one: the same losses, loss scale and checkpoints."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from processes import run_processes
from workload_runs import quiet

import unifiedamp.workloads.training.run
from unifiedamp.checkpoint.sealed_file import load_checkpoint
from unifiedamp.output.signals import Terminated
from unifiedamp.workloads.configuration import read_settings, read_source
from unifiedamp.workloads.training.loop import train

FILE = Path(__file__).with_name("divided.py")
RANKS = 3
MOVING = {"policy": "mixed_float16", "loss_scale": {"kind": "dynamic", "initial_scale": 1024.0, "growth_interval": 4}}
CASES = {
    "plain": {},
    "last batch of one row": {"given": {"rows": 129}},
    "uneven parts": {"given": {"batch_size": 20, "rows": 100}},
    "windows, clipping": {"amp": {"accumulate_steps": 2}, "train": {"clip_norm": 0.1}},
    "compiled": {"train": {"compile": True}},
    "overflow on one rank": {"amp": MOVING, "given": {"fault": "overflow"}},
    "cast after wrapping": {"amp": {"policy": "bfloat16"}},
    "wrapped by the workload": {"given": {"fault": "wrapped"}},
    "sharded by the workload": {"given": {"fault": "sharded"}},
    "own parts": {"name": "OwnPart", "given": {"fault": "own part"}},
    "own parts, some empty": {"name": "OwnPart", "given": {"fault": "own part", "rows": 129}},
    "stopped": {"given": {"fault": "stopped"}, "train": {"epochs": 3}},
    "other order": {"given": {"fault": "other order"}},
    "fewer batches": {"name": "Listed", "given": {"fault": "fewer"}},
    "a generator that ends early": {"given": {"fault": "ends early"}},
    "lengths": {"given": {"fault": "lengths"}},
}


def run(folder, name="Regression", amp=None, train_table=None, given=None, **options):
    """Train one case; return what a user finds afterwards."""
    source = read_source(f"{FILE}:{name}")
    session = {"backend": "torch", "device": "cpu", "policy": "float32", **(amp or {})}
    chosen = read_settings(source, folder, amp=session, train={"epochs": 2, **(train_table or {})}, given=given or {})
    display = quiet()
    try:
        done = train(chosen, display, **options)
    except (Exception, KeyboardInterrupt) as error:
        return {"error": f"{type(error).__name__}: {error}", "shown": display.console.file.getvalue()}
    state = done.amp.state_dict()["state"]
    found = {"losses": done.history.losses, "state": state, "shown": display.console.file.getvalue()}
    return {**found, "resumed_at": done.resumed_at}


def run_case(folder, case):
    return run(folder, **{{"train": "train_table"}.get(key, key): value for key, value in CASES[case].items()})


def on_rank(rank, folder, ports):
    """Run every case on one of several processes, each where its processes meet anew."""
    found = {}
    for (case, _), port in zip(CASES.items(), ports, strict=True):
        launched(rank, RANKS, port)
        found[case] = run_case(Path(folder, case), case)
        abandon()
    return found


def abandon():
    """Leave the process group of a case that ended with an error."""
    import torch.distributed as dist

    from unifiedamp_torch.distributed.launched import keep_gloo_group

    if dist.is_initialized():
        dist.barrier()  # gloo's threads wait for ever for a peer that left first
        keep_gloo_group()
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    folder = tmp_path_factory.mktemp("together")
    places = meeting_places(len(CASES))
    return folder, run_processes(on_rank, str(folder), [place.port for place in places], count=RANKS)


def meeting_places(count):
    """Stores where processes meet, each at a port that the system chose; the processes of torchrun meet so too."""
    from torch.distributed import TCPStore

    return [TCPStore("localhost", 0, is_master=True, wait_for_workers=False) for _ in range(count)]


def launched(rank, size, port):
    """Set the environment that torchrun gives a process."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank))
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True")


REFUSED = ("stopped", "other order", "fewer batches", "a generator that ends early", "lengths")
SAME = [case for case in CASES if case not in REFUSED]


@pytest.mark.parametrize("case", SAME)
def test_several_processes_train_as_one(together, tmp_path, case):
    folder, answers = together
    found = [answer[case] for answer in answers]
    alone = run_case(tmp_path / "alone", "plain" if case == "compiled" else case)
    for each in (alone, *found):
        assert "losses" in each, each
    low = CASES[case].get("amp", {}).get("policy", "float32") != "float32"
    tolerance = {"rel": 3e-2, "abs": 1e-2} if low else {"rel": 2e-5}
    for each in found:
        assert each["losses"] == pytest.approx(alone["losses"], nan_ok=True, **tolerance)
        assert each["state"] == alone["state"]
    assert len({str(each["losses"]) for each in found}) == 1
    if case == "overflow on one rank":
        assert alone["state"]["skipped_steps"] == 2
    log = json.loads((folder / case / "log.json").read_text())
    assert len(log["losses"]) == len(alone["losses"])
    scores = [row["scores"]["score"] for row in log["epochs"]]
    expected = json.loads((tmp_path / "alone" / "log.json").read_text())["epochs"]
    assert scores == pytest.approx([row["scores"]["score"] for row in expected], **tolerance)


def test_the_first_process_alone_shows_the_run(together):
    _, answers = together
    assert "epoch" in answers[0]["plain"]["shown"]
    assert [answer["plain"]["shown"] for answer in answers[1:]] == [""] * (RANKS - 1)


def test_a_signal_to_one_process_stops_all_and_the_run_goes_on_alone(together, tmp_path):
    folder, answers = together
    assert [answer["stopped"].get("error") for answer in answers] == [f"{Terminated.__name__}: "] * RANKS
    rest = run(folder / "stopped", train_table={"epochs": 3}, given={"fault": ""}, resume=True)
    assert rest["error"].startswith("CheckpointError"), "another setting"
    rest = run(folder / "stopped", train_table={"epochs": 3}, given={"fault": "stopped"}, resume=True)
    alone = run(tmp_path / "alone", train_table={"epochs": 3})
    assert rest["losses"] == pytest.approx(alone["losses"], rel=2e-5)


def test_a_run_of_one_process_goes_on_in_several(tmp_path):
    alone = run(tmp_path / "alone", train_table={"epochs": 2})
    run(tmp_path / "run", train_table={"epochs": 1})
    (place,) = meeting_places(1)
    answers = run_processes(resumed, str(tmp_path / "run"), place.port, count=2)
    assert [answer["losses"] for answer in answers] == [pytest.approx(alone["losses"], rel=2e-5)] * 2


def resumed(rank, folder, port):
    launched(rank, 2, port)
    return run(Path(folder), train_table={"epochs": 2}, resume=True)


def test_a_process_that_is_late_resumes_where_the_others_do(tmp_path):
    """From the checkpoint at an epoch's last batch, of which the first process writes the next one at once."""
    alone = run(tmp_path / "alone", train_table={"checkpoint_every": 5}, saved=keep_last_batch)
    (tmp_path / "kept").rename(tmp_path / "run")
    (place,) = meeting_places(1)
    answers = run_processes(resumed_late, str(tmp_path / "run"), place.port, count=2)
    for answer in answers:
        assert answer["resumed_at"] == (0, 5), answer
        assert answer["losses"] == pytest.approx(alone["losses"], rel=2e-5)


def keep_last_batch(run):
    if (run.epoch, run.batch) == (0, 5):
        shutil.copytree(run.settings.out, run.settings.out.with_name("kept"))


def resumed_late(rank, folder, port):
    def late(path):
        time.sleep(3)
        return load_checkpoint(path)

    launched(rank, 2, port)
    if rank:
        unifiedamp.workloads.training.run.load_checkpoint = late
    return run(Path(folder), train_table={"checkpoint_every": 5}, resume=True)


def test_what_cannot_be_divided_is_refused_on_every_process(together):
    _, answers = together
    for answer in answers:
        assert "batches(0) yields other samples on rank 1 than on rank 0" in answer["other order"]["error"]
        assert "or another number of batches" in answer["fewer batches"]["error"]
        ended = answer["a generator that ends early"]["error"]
        assert ended.startswith("ConfigError: ")
        assert "batches(1) yields another number of batches on rank 1 than on rank 0" in ended
        assert "arrays of 5 and 32 rows" in answer["lengths"]["error"]
        assert "shard(batch, rank, ranks)" in answer["lengths"]["error"]


def test_a_killed_process_is_started_anew_and_nothing_is_lost(tmp_path):
    """By torchrun itself: SIGKILL to one worker in the second epoch; all start anew, from the last checkpoint."""
    config = tmp_path / "run.toml"
    config.write_text(
        f'workload = "{FILE}:Regression"\n[amp]\nbackend = "torch"\ndevice = "cpu"\npolicy = "float32"\n'
        '[settings]\nfault = "killed"\n[train]\nepochs = 3\ncheckpoint_every = 2\n'
    )
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    command = [sys.executable, *launcher, "-m", "unifiedamp", "train", str(config), "--out", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "exitcode: -9) local_rank: 1" in done.stderr
    assert re.search("resumed at epoch 2, batch [13]", done.stdout), "of the last checkpoint, or of the one before"
    losses = json.loads((tmp_path / "run" / "log.json").read_text())["losses"]
    assert losses == pytest.approx(run(tmp_path / "alone", train_table={"epochs": 3})["losses"], rel=2e-5)
