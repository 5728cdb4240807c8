"""A workload under the recorder: the same curves, and a recording that the report reads."""

import pytest
from workload_runs import log_of, quiet, run, settings

from unifiedamp.recording.reading import read_recording
from unifiedamp.workloads.training.loop import train


@pytest.mark.parametrize("compile", [False, True])
def test_a_recorded_run_trains_the_same(tmp_path, backend, compile):
    chosen = {"epochs": 1, "model": "mlp", "compile": compile}
    plain = run(tmp_path, backend, **chosen)
    file = tmp_path / "run.jsonl"
    recorded = train(settings(tmp_path, backend, out="other", **chosen), quiet(), record=[file], record_every=10)
    assert log_of(recorded.settings.out)["losses"] == pytest.approx(log_of(plain.settings.out)["losses"], rel=1e-3)
    found = read_recording(file)
    assert [step["step"] for step in found.steps] == [1, 10, 20]
    assert len(found.steps[0]["gradients"]) == 8
    assert found.header["backend"] == backend


def test_a_resumed_run_goes_on_in_the_same_file(tmp_path, backend):
    file = tmp_path / "run.jsonl"
    for epochs, resume in ((1, False), (2, True)):
        chosen = settings(tmp_path, backend, model="mlp", epochs=epochs)
        train(chosen, quiet(), resume=resume, record=[file], record_every=15)
    found = read_recording(file)
    assert [head["first_step"] for head in found.headers] == [1, 23]
    assert [step["step"] for step in found.steps] == [1, 15, 23, 30]
