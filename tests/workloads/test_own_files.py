"""Users' own files: they train as written, and a stopped run goes on without a bit lost, whatever the optimizer."""

from __future__ import annotations

import warnings

import numpy as np
import own_files
import pytest
from own_files import ADAM, run, write

import unifiedamp as ua
from unifiedamp.checkpoint.sealed_file import load_checkpoint

SMALL = {"given": {"learning_rate": 0.01, "batch_size": 256}}


@pytest.fixture(params=["sgd", "adam"])
def path(request, backend, tmp_path):
    return write(tmp_path, backend, *([ADAM[backend]] if request.param == "adam" else []))


def test_a_file_trains_as_init_writes_it(backend, tmp_path):
    done = run(write(tmp_path, backend), tmp_path / "out")
    row = done.history.epochs[-1]
    assert row["scores"]["accuracy"] > 0.9
    assert row["scores"]["samples"] == 512
    assert row["applied_steps"] == 64
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["checkpoint.npz", "curves.png", "log.json"]


def test_a_resumed_run_repeats_the_uninterrupted_one(path, tmp_path):
    """The optimizer's state, its counts of steps included, is in the checkpoint."""
    whole = run(path, tmp_path / "whole", epochs=2, **SMALL)
    run(path, tmp_path / "parts", epochs=1, **SMALL)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "non-integer arguments to randrange")  # Keras 2 draws seeds so
        parts = run(path, tmp_path / "parts", epochs=2, resume=True, **SMALL)
    assert len(whole.history.losses) == 32
    np.testing.assert_allclose(parts.history.losses, whole.history.losses, rtol=1e-5)
    one, other = (load_checkpoint(each.checkpoint_path).arrays for each in (whole, parts))
    assert one.keys() == other.keys()
    assert any(name.startswith("optimizer/0/") and value.any() for name, value in one.items())
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_run_that_ran_out_of_steps_goes_on_in_the_middle_of_its_epoch(path, tmp_path):
    whole = run(path, tmp_path / "whole", epochs=2, **SMALL)
    first = run(path, tmp_path / "parts", epochs=2, steps=5, **SMALL)
    assert (first.epoch, first.batch, len(first.history.losses)) == (0, 5, 5)
    run(path, tmp_path / "parts", epochs=2, steps=16, resume=True, **SMALL)
    last = run(path, tmp_path / "parts", epochs=2, resume=True, **SMALL)
    np.testing.assert_allclose(last.history.losses, whole.history.losses, rtol=1e-5)
    assert [row["applied_steps"] for row in last.history.epochs] == [16, 32]


def test_the_learning_rate_is_the_command_lines_when_a_run_goes_on(backend, tmp_path):
    """It is a setting, not state: with almost none, the weights stay. (Keras's and MXNet's momentum has it inside.)"""
    path = write(tmp_path, backend, ADAM[backend])
    run(path, tmp_path / "out", epochs=1, **SMALL)
    before = load_checkpoint(tmp_path / "out" / "checkpoint.npz").arrays
    given = {**SMALL["given"], "learning_rate": 1e-12}
    run(path, tmp_path / "out", epochs=2, resume=True, given=given)
    after = load_checkpoint(tmp_path / "out" / "checkpoint.npz").arrays
    for name in before:
        if name.startswith("weights/"):
            np.testing.assert_allclose(after[name], before[name], rtol=1e-5, atol=1e-7)


def test_a_checkpoint_of_another_optimizer_is_refused(backend, tmp_path):
    run(write(tmp_path, backend, ADAM[backend], name="first.py"), tmp_path / "out", epochs=1, **SMALL)
    before = (tmp_path / "out" / "checkpoint.npz").read_bytes()
    wider = write(tmp_path, backend, ("hidden: int = 128", "hidden: int = 64"), name="second.py")
    with pytest.raises(ua.CheckpointError, match="hidden = 128"):
        run(wider, tmp_path / "out", epochs=2, resume=True, **SMALL)
    fixed = write(tmp_path, backend, ("hidden: int = 128", "hidden: int = 128"), ("self.hidden", "64"), name="third.py")
    with pytest.raises(ua.CheckpointError, match="is of another model"):
        run(fixed, tmp_path / "out", epochs=2, resume=True, **SMALL)
    assert (tmp_path / "out" / "checkpoint.npz").read_bytes() == before


def test_another_backend_needs_weights_under_common_names(backend, other, tmp_path):
    if backend == other:
        pytest.skip("the same backend goes on")
    first, second = write(tmp_path, backend), write(tmp_path, other)
    run(first, tmp_path / "out", epochs=1, **SMALL)
    with pytest.raises(ua.CheckpointError, match=f"as backend {backend!r} names them.*export_weights"):
        run(second, tmp_path / "out", epochs=2, resume=True, **SMALL)


def test_a_module_of_functions_is_a_workload_too(backend, tmp_path):
    """Keyword defaults are its settings."""
    inner = write(tmp_path, backend, name=f"inner_{backend}.py")
    text = f"""
from {inner.stem} import MyModel as _Inner

def make_model(hidden: int = 8): return _Inner(hidden=hidden).make_model()
def make_optimizer(model, learning_rate=0.1): return _Inner(learning_rate=learning_rate).make_optimizer(model)
def loss(model, batch): return _Inner().loss(model, batch)
def batches(epoch, batch_size=512, few: bool = False):
    found = list(_Inner(batch_size=batch_size).batches(epoch))
    return found[:2] if few else found
"""
    path = tmp_path / f"functions_{backend}.py"
    path.write_text(text)
    amp = {"backend": backend}
    done = run(path, tmp_path / "out", amp=amp, given={"hidden": "16", "few": "true"})
    assert done.workload.settings == {"hidden": 16, "learning_rate": 0.1, "batch_size": 512, "few": True}
    assert len(done.history.losses) == 2
    assert done.history.epochs[-1]["scores"] == {}
    assert 16 in {size for array in done.state.weights().values() for size in array.shape}


def test_own_files_have_every_backend(backend):
    assert backend in own_files.ADAM
