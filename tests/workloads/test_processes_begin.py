"""Processes of a run begin alike, also when their launcher starts them anew, and end where one of them ends; otherwise
each of them says why.
"""

import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")

from processes import run_processes
from test_workload_ranks import abandon, keep_last_batch, launched, meeting_places, run

from unifiedamp.backend import Launch
from unifiedamp.workloads.training import loop

HALF = {"epochs": 3, "checkpoint_every": 5}
OTHERS = "is not the same file on rank 1 and on rank 0, or only one of them is to resume"
NONE = "holds no checkpoint"
CASES = {
    "another": ({"resume": True}, OTHERS, OTHERS),
    "none": ({"resume": True}, OTHERS, NONE),
    "none, started anew": ({"restarts": 1}, OTHERS, OTHERS),
    "unfinished": ({}, "pass --resume to go on with it", OTHERS),
}
"""What differs between two hosts that share no folder → how both begin, and what each of them says."""


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """What two processes say in each case, of which the second one finds another checkpoint, or none."""
    folder = tmp_path_factory.mktemp("begun")
    run(folder / "other", train_table=HALF, saved=keep_last_batch)
    for case in CASES:
        shutil.copytree(folder / "kept", folder / case / "0")
        if case == "another":
            shutil.copytree(folder / "other", folder / case / "1")
    places = meeting_places(len(CASES))
    return run_processes(begin, str(folder), [place.port for place in places])


def begin(rank, folder, ports):
    found = {}
    for (case, (how, *_)), port in zip(CASES.items(), ports, strict=True):
        launched(rank, 2, port)
        launch = Launch("torchrun", rank, 2, restarts=how.get("restarts", 0))
        out = Path(folder, case, str(rank))
        found[case] = run(out, train_table=HALF, launch=launch, resume=how.get("resume", False))
        abandon()
    return found


@pytest.mark.parametrize("case", CASES)
def test_processes_that_find_other_checkpoints_are_refused(begun, case):
    for answer, said in zip(begun, CASES[case][1:], strict=True):
        assert re.search(said, answer[case].get("error", "it trained")), answer[case]


@pytest.fixture
def started(monkeypatch):
    """Trains in a launcher's only process, which was started anew so often."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)  # what launched sets is taken back

    def started(folder, restarts):
        (place,) = meeting_places(1)
        launched(0, 1, place.port)
        return run(folder, train_table={"epochs": 1}, launch=Launch("torchrun", 0, 1, restarts=restarts))

    return started


def test_a_run_that_died_before_its_first_checkpoint_is_not_taken_for_an_earlier_one(tmp_path, monkeypatch, started):
    """The launcher starts its processes anew in the folder of an earlier run, which is finished."""
    earlier = run(tmp_path, train_table={"epochs": 1})

    def died(*_):
        raise MemoryError

    with monkeypatch.context() as dying:
        dying.setattr(loop, "make_run", died)
        assert "MemoryError" in started(tmp_path, 0)["error"]
    for resumed_at in (None, (1, 0)):  # then it has a checkpoint, and is started once more
        again = started(tmp_path, 1)
        assert again.get("resumed_at", again) == resumed_at
        assert again["losses"] == pytest.approx(earlier["losses"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.npz", "curves.png", "log.json"]


def test_a_process_that_fails_is_lost_to_the_others(tmp_path):
    (place,) = meeting_places(1)
    here, failed = run_processes(fails, str(tmp_path), place.port)
    assert failed["error"] == "ValueError: a fault of the data"
    assert here["error"].startswith("ProcessLostError: train: another of the 2 processes (rank 0 lost its connection")
    assert "start all processes again, with --resume" in here["error"]


def fails(rank, folder, port):
    launched(rank, 2, port)
    return run(Path(folder), given={"fault": "raised"})
