"""A worker of ``TF_CONFIG`` or ``launch.py`` is killed or fails alone: the others end, and nothing is lost."""

import json
import re

import effort
import pytest
from clusters import SECONDS, of_mxnet, of_tensorflow, started
from worker_runs import FILES, run

from unifiedamp.config import plugins

CONFIG = """
workload = "{file}:Regression"
[amp]
backend = "{backend}"
device = "cpu"
policy = "float32"
[settings]
fault = "{fault}"
mark = "{mark}"
[train]
epochs = 3
checkpoint_every = 2
"""
LOST = {
    "mxnet": r"worker [01] of launch\.py sent no heartbeat for 20 seconds",
    "tensorflow": r"unifiedamp: train: worker 1 of TF_CONFIG has ended",
}
"""What the others say; the kvstore numbers workers itself."""
FULL = pytest.mark.skipif(not effort.FULL, reason="of UNIFIEDAMP_TEST_EFFORT=full")


def environments(backend):
    """The second process is the worker that is killed."""
    if backend == "tensorflow":
        return of_tensorflow()
    return [each | {"DMLC_WORKER_ID": each.get("RANK", "0")} for each in of_mxnet()]


@pytest.mark.parametrize(
    ("of", "fault"),
    [
        ("mxnet", "killed"),
        pytest.param("mxnet", "raised", marks=FULL),
        pytest.param("tensorflow", "killed", marks=FULL),
    ],
)
def test_the_others_end_and_the_run_goes_on_from_the_last_checkpoint(of, fault, tmp_path):
    if not plugins.is_installed(of):
        pytest.skip(f"{of} is not installed")
    mark = tmp_path / "mark"
    config = tmp_path / "run.toml"
    config.write_text(CONFIG.format(file=FILES[of], backend=of, fault=fault, mark=mark))
    words = ["-m", "unifiedamp", "train", str(config), "--out", str(tmp_path / "run")]
    with started(words, environments(of)) as processes:
        processes[1].wait(SECONDS)
        said = [process.communicate(timeout=60)[1] for process in processes]
    codes = [process.returncode for process in processes]
    assert codes[1] == (-9 if fault == "killed" else 1), said
    assert all(code > 0 for code in codes[:1] + codes[2:]), said
    assert re.search(LOST[of], "".join(said))
    table = {"epochs": 3, "checkpoint_every": 2}
    rest = run(of, tmp_path / "run", train_table=table, given={"fault": fault, "mark": str(mark)}, resume=True)
    alone = run(of, tmp_path / "alone", train_table=table)
    assert "losses" in rest, rest
    assert rest["losses"] == pytest.approx(alone["losses"], rel=2e-5)
    assert len(json.loads((tmp_path / "run" / "log.json").read_text())["losses"]) == 15
