"""Checkpoint files: what goes in comes out; what is damaged is refused; a kill never costs the previous one."""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
import zipfile

import forked
import numpy as np
import pytest
from crashes import Disk, killed
from effort import FUZZ, KILLS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import unifiedamp as ua
from unifiedamp.checkpoint import sealed_file
from unifiedamp.checkpoint.sealed_file import load_checkpoint, save_checkpoint

META = {"epoch": 3, "amp": {"schema": "unifiedamp"}, "names": ["ü", None, 0.1]}
ARRAYS = {"weights/conv1/kernel": np.arange(6, dtype=np.float32).reshape(1, 2, 3), "count": np.array(7)}
TMP_IN_GIVEN = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=FUZZ, deadline=None)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "checkpoint.npz"


@pytest.fixture
def saved(path):
    save_checkpoint(path, META, ARRAYS)
    return path


def test_round_trip(saved):
    got = load_checkpoint(saved)
    assert got.meta == META
    assert list(got.arrays) == list(ARRAYS)
    for name, value in ARRAYS.items():
        np.testing.assert_array_equal(got.arrays[name], value)
        assert (got.arrays[name].dtype, got.arrays[name].shape) == (value.dtype, value.shape)
    assert [p.name for p in saved.parent.iterdir()] == ["checkpoint.npz"]


def test_numpy_alone_can_read_it(saved):
    with np.load(saved, allow_pickle=False) as archive:
        np.testing.assert_array_equal(archive["weights/conv1/kernel"], ARRAYS["weights/conv1/kernel"])
    assert zipfile.ZipFile(saved).testzip() is None


@settings(TMP_IN_GIVEN, max_examples=min(FUZZ, 500))  # nothing is damaged here: this is no fuzz test
@given(value=hnp.arrays(st.sampled_from(["f2", "f4", "f8", "i4", "u1", "?", "c8"]), hnp.array_shapes(min_dims=0)))
def test_any_numeric_array_round_trips(path, value):
    save_checkpoint(path, {}, {"x": value})
    np.testing.assert_array_equal(load_checkpoint(path).arrays["x"], value)


@TMP_IN_GIVEN
@given(data=st.data())
def test_every_truncation_is_refused(saved, data):
    content = saved.read_bytes()
    broken = saved.with_name("broken.npz")
    broken.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(ua.CheckpointError, match=r"broken\.npz"):
        load_checkpoint(broken)


@TMP_IN_GIVEN
@given(data=st.data())
def test_every_changed_byte_is_refused(saved, data):
    content = bytearray(saved.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = (content[at] + data.draw(st.integers(1, 255))) % 256
    if bytes(content) == saved.read_bytes():
        return
    broken = saved.with_name("broken.npz")
    broken.write_bytes(content)
    with pytest.raises(ua.CheckpointError):
        load_checkpoint(broken)


@TMP_IN_GIVEN
@given(content=st.binary(max_size=400))
def test_foreign_bytes_are_refused(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ua.CheckpointError):
        load_checkpoint(tmp_path / "x")


class Bomb:
    def __reduce__(self):
        return (os._exit, (66,))


def test_pickle_is_never_run(tmp_path):
    (tmp_path / "torch.pt").write_bytes(pickle.dumps(Bomb()))
    np.savez(tmp_path / "objects.npz", x=np.array([Bomb()], dtype=object))
    for name in ("torch.pt", "objects.npz"):
        with pytest.raises(ua.CheckpointError):
            load_checkpoint(tmp_path / name)


def test_a_sealed_archive_of_objects_is_refused(tmp_path, monkeypatch):
    """Even a file with a right checksum is read without pickle."""
    import hashlib
    import io

    buffer = io.BytesIO()
    np.savez(buffer, x=np.array([Bomb()], dtype=object))
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("metadata.json", "{}")
        archive.comment = b" " * sealed_file.SEAL_LENGTH
    body = buffer.getvalue()[: -sealed_file.SEAL_LENGTH]
    seal = f"unifiedamp checkpoint 0001 sha256 {hashlib.sha256(body).hexdigest()}".encode()
    (tmp_path / "x.npz").write_bytes(body + seal)
    with pytest.raises(ua.CheckpointError, match="allow_pickle"):
        load_checkpoint(tmp_path / "x.npz")


def test_newer_version_asks_for_an_update(path, monkeypatch):
    monkeypatch.setattr(sealed_file, "VERSION", 2)
    save_checkpoint(path, META, ARRAYS)
    monkeypatch.undo()
    with pytest.raises(ua.CheckpointError, match="version 2; this unifiedamp reads up to 1"):
        load_checkpoint(path)


def test_missing_file_and_directory_are_refused(tmp_path):
    for path in (tmp_path / "none.npz", tmp_path):
        with pytest.raises(ua.CheckpointError, match="cannot be read"):
            load_checkpoint(path)


@pytest.mark.parametrize(
    ("meta", "arrays", "message"),
    [
        ({"x": object()}, {}, "plain JSON"),
        ({"x": float("nan")}, {}, "plain JSON"),
        ({1: "x"}, {}, "come back"),
        ({"x": (1, 2)}, {}, "come back"),
        ({}, {"layer": np.array([object()])}, "'layer'"),
        ({}, {"": np.zeros(1)}, "name"),
        ({}, {"metadata.json": np.zeros(1)}, "name"),
    ],
)
def test_what_cannot_be_stored_keeps_the_previous(saved, meta, arrays, message):
    with pytest.raises(ua.CheckpointError, match=message):
        save_checkpoint(saved, meta, arrays)
    assert load_checkpoint(saved).meta == META


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failing_disk_keeps_the_previous_and_leaves_no_rubbish(saved, monkeypatch, call):
    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(ua.CheckpointError, match="No space left"):
        save_checkpoint(saved, {}, {})
    monkeypatch.undo()
    assert load_checkpoint(saved).meta == META
    assert [p.name for p in saved.parent.iterdir()] == ["checkpoint.npz"]


def test_old_leftovers_of_a_killed_writer_are_removed(saved):
    old, young = (saved.with_name(f".checkpoint.npz.{name}.tmp") for name in ("old", "young"))
    for left in (old, young):
        left.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    save_checkpoint(saved, META, ARRAYS)
    assert not old.exists()
    assert young.exists()


HALF = """
import os, signal, sys, numpy as np
from unifiedamp.checkpoint import sealed_file
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGNAL)
sealed_file.save_checkpoint(sys.argv[1], {}, {"x": np.zeros(1000)})
"""


def test_the_next_writer_removes_what_a_killed_one_left(path):
    """Half a file beside the checkpoint, known by the process in its name; another machine's is left alone."""
    subprocess.run([sys.executable, "-c", HALF.replace("SIGNAL", "SIGKILL"), str(path)], timeout=60, check=False)
    (half,) = path.parent.iterdir()
    assert half.stat().st_size > 8000
    elsewhere = half.with_name(".checkpoint.npz.elsewhere-1.0.tmp")
    elsewhere.write_bytes(b"half")
    save_checkpoint(path, META, ARRAYS)
    assert sorted(path.parent.iterdir()) == sorted([path, elsewhere])


def test_a_writer_that_is_terminated_leaves_nothing(path):
    code = HALF.replace("SIGNAL", "SIGTERM").replace("sealed_file.save", "with terminable(): sealed_file.save")
    line = [sys.executable, "-c", "from unifiedamp.output.signals import terminable" + code, str(path)]
    done = subprocess.run(line, timeout=60, check=False, capture_output=True, text=True)
    assert "Terminated" in done.stderr
    assert list(path.parent.iterdir()) == []


def save_number(path, number, fatal):
    """Save a checkpoint; the process dies at the place of this number."""
    Disk(fatal).install()
    save_checkpoint(path, {"n": number}, {"x": np.full(50_000, number)})


def places_of_a_save(path, monkeypatch):
    with monkeypatch.context() as patch:
        disk = Disk(None).install(patch.setattr)
        save_checkpoint(path, {"n": 0}, {"x": np.zeros(1)})
    return disk.places


def test_a_death_at_any_place_leaves_a_whole_checkpoint(path, monkeypatch):
    """The old one until the file is replaced, the new one from then on; and the next writer finds no rubbish."""
    places = places_of_a_save(path, monkeypatch)
    assert places == [
        "before write", "within write", "after write", "before fsync", "after fsync", "before replace",
        "after replace", "before directory fsync", "after directory fsync",
    ]  # fmt: skip
    number = 0
    for fatal, place in enumerate(places):
        assert killed(save_number, path, number + 1, fatal)
        number += fatal >= places.index("after replace")
        got = load_checkpoint(path)
        assert got.meta == {"n": number}, place
        assert np.all(got.arrays["x"] == number), place
    save_checkpoint(path, {"n": number}, {})
    assert list(path.parent.iterdir()) == [path]


def contents_after_a_power_cut(done, old, new):
    """What the checkpoint's name may stand for when the power fails after these places.

    What is written is on the disk once it is synced, a name once its directory is; before, either may be there or not,
    and of what is written any part.
    """
    if "after directory fsync" in done:
        return [new]
    parts = [new] if "after fsync" in done else [new[:length] for length in (0, 1, len(new) // 2, len(new))]
    return [old, *parts] if "before replace" in done else [old]


def test_a_power_cut_at_any_place_leaves_a_whole_checkpoint(path, monkeypatch):
    """What no kill shows: without ``fsync`` before ``replace``, an empty file may bear the checkpoint's name."""
    places = places_of_a_save(path, monkeypatch)
    old = path.read_bytes()
    save_checkpoint(path, {"n": 1}, {"x": np.ones(1)})
    new, saved = path.read_bytes(), path.with_name("after.npz")
    for count in range(len(places) + 1):
        for content in contents_after_a_power_cut(places[:count], old, new):
            saved.write_bytes(content)
            assert load_checkpoint(saved).meta["n"] == (0 if content == old else 1), places[:count]
    assert contents_after_a_power_cut(places, old, new) == [new]


WRITER = """
import sys, numpy as np
from unifiedamp.checkpoint.sealed_file import save_checkpoint
n = int(sys.argv[2])
print("ready", flush=True)
while True:
    n += 1
    save_checkpoint(sys.argv[1], {"n": n}, {"x": np.full(50_000, n)})
    print(n, flush=True)
"""


@pytest.mark.skipif(not KILLS, reason="random kills belong to the full session; each place is died at above")
def test_kill_at_any_moment_leaves_a_whole_checkpoint(path):
    last, rng = 0, random.Random(5)
    save_checkpoint(path, {"n": 0}, {"x": np.zeros(1)})
    for _ in range(KILLS):
        command = [sys.executable, "-c", WRITER, str(path), str(last)]
        with forked.start(command) as writer:
            assert writer.stdout.readline() == "ready\n"
            time.sleep(rng.uniform(0.0, 0.06))
            writer.send_signal(signal.SIGKILL)
            reported = [int(line) for line in writer.stdout.read().split()]
        got = load_checkpoint(path)
        # What was reported written is there; at most one write more may have got through.
        assert got.meta["n"] - (reported[-1] if reported else last) in (0, 1)
        assert np.all(got.arrays["x"] == got.meta["n"])
        last = got.meta["n"]
    assert last > 20


def test_metadata_is_readable_json(saved):
    assert json.loads(zipfile.ZipFile(saved).read("metadata.json")) == META
