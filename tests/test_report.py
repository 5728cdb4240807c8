"""``unifiedamp report`` on a real recording: sentences, JSON, pictures, a page that needs nothing beside it."""

import json
import os
import re
import struct
import subprocess
import sys

import numpy as np
import pytest
from page_checks import checked
from typer.testing import CliRunner

import unifiedamp as ua
from unifiedamp.cli import app
from unifiedamp.config import plugins
from unifiedamp.conformance.harness import load_harness
from unifiedamp.recording import TensorBoard

BACKEND = next((name for name in ("torch", "tensorflow", "mxnet") if plugins.is_installed(name)), None)
pytestmark = pytest.mark.skipif(BACKEND is None, reason="needs one of the three frameworks")


def train(*targets, steps=12, every=3):
    harness = load_harness(BACKEND)
    amp = ua.Amp(BACKEND, "float32", device="cpu", loss_scale=ua.DynamicLossScale(initial_scale=8.0))
    with amp.scope():
        model = harness.probe((1.0, 1.0))
        optimizer = harness.sgd([model], 0.1)
    model, optimizer = amp.prepare(model, optimizer)
    with amp.record(*targets, every=every):
        for step in range(1, steps + 1):
            x = amp.to_native(np.float32([1.0, 1e38 if step == 7 else 2.0**-40]))
            amp.backward(lambda x=x: model(x), optimizer)
            amp.step(optimizer)
    amp.close()


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "run.jsonl"
    train(path)
    return path


def run(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_sentences_name_what_was_planted(recording):
    done = run(recording)
    assert done.exit_code == 0
    assert "gradient of `w1`: 100% of its values are below 2**-24" in done.stdout
    assert "the gradient of `w1` was the first that was not finite in 1 of 1 skipped step" in done.stdout


def test_json(recording):
    report = json.loads(run(recording, "--json").stdout)
    assert report["header"]["backend"] == BACKEND
    # Steps 1, 3, 6, 9 and 12, and the one after the skipped seventh.
    assert (report["recorded_steps"], report["skipped_steps"], report["damaged_lines"]) == (6, 1, 0)
    assert {found["name"] for found in report["findings"]} == {"w1"}
    assert report["gradients"]["w1"]["scaled"]["flushed"] == 1.0
    assert report["gradients"]["w0"]["scaled"]["flushed"] == 0.0


def test_the_page_is_one_file_with_its_plots(recording, tmp_path):
    path = tmp_path / "run.html"
    done = run(recording, "--html", path)
    assert done.exit_code == 0, done.output
    text = path.read_text(encoding="utf-8")
    page = checked(text)
    assert [drawing.strip().split("\n")[0] for drawing in page.drawings] == [
        "Gradient values by power of two", "Loss scale", "Underflow: layer by step", "Largest activations",
    ]  # fmt: skip
    assert "<code>w1</code>" in text
    assert "w1up to 100% below 2⁻²⁴" in page.drawings[2].replace("\n", "")
    assert "w0none below 2⁻²⁴" in page.drawings[2].replace("\n", "")


def test_rows_of_the_page_are_those_of_the_json(recording, tmp_path):
    """Shares of 5 recorded steps with finite gradients: w1 is below 2**-24 in all, w0 in none."""
    path = tmp_path / "run.html"
    run(recording, "--html", path)
    page = checked(path.read_text(encoding="utf-8"))
    labels = [attrs["data-label"] for _, attrs in page.tags if "data-label" in attrs]
    head, *rows = page.cells
    assert labels == head * len(rows)
    assert {cells[0]: cells[3] for cells in rows} == {"w0": "0.0%", "w1": "100.0%"}


def test_pictures_as_files(recording, tmp_path):
    assert run(recording, "--png", tmp_path / "pictures").exit_code == 0
    for name in ("exponents", "scale", "underflow", "activations"):
        head = (tmp_path / "pictures" / f"{name}.png").read_bytes()[:24]
        assert head[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = struct.unpack(">II", head[16:24])
        assert width > 500
        assert height > 100


def test_mistakes_are_one_line_and_exit_code_2(recording, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("hello\n")
    for arguments, said in (
        ((tmp_path / "absent.jsonl",), "unifiedamp train --record run.jsonl"),
        ((other,), "is no recording"),
        ((recording, "--html", tmp_path / "no" / "run.html"), "--html"),
        ((recording, "--png", other), "--png"),
    ):
        done = run(*arguments)
        assert done.exit_code == 2
        assert len(done.stderr.splitlines()) == 1
        assert said in done.stderr


def test_help_has_an_example():
    assert "Example: unifiedamp train" in run("--help").stdout


@pytest.mark.parametrize("lacking", [{"matplotlib.figure": None}, {"matplotlib": None, "matplotlib.figure": None}])
def test_without_matplotlib_only_png_files_are_missing(recording, tmp_path, monkeypatch, lacking):
    for name, value in lacking.items():
        monkeypatch.setitem(sys.modules, name, value)
    done = run(recording, "--html", tmp_path / "run.html", "--png", tmp_path / "pictures")
    assert done.exit_code == 0
    assert "gradient of `w1`" in done.stdout
    assert len(checked((tmp_path / "run.html").read_text(encoding="utf-8")).drawings) == 4
    (line,) = done.stderr.splitlines()
    assert "warning: --png" in line
    assert "pip install matplotlib" in line
    assert not (tmp_path / "pictures").exists()
    saved = json.loads(run(recording, "--json", "--png", tmp_path / "pictures").stdout)
    assert saved["written"] == []
    assert "pip install matplotlib" in saved["warnings"][0]


def test_a_plotting_backend_that_does_not_exist_is_a_warning(recording, tmp_path):
    """As in a notebook whose own backend's name is in the environment."""
    code = [sys.executable, "-c", "from unifiedamp.cli import app; app()"]
    line = [*code, "report", str(recording), "--html", str(tmp_path / "run.html"), "--png", str(tmp_path / "pictures")]
    env = {**os.environ, "MPLBACKEND": "no_such_backend"}
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "no_such_backend" in done.stderr
    assert len(checked((tmp_path / "run.html").read_text(encoding="utf-8")).drawings) == 4


def test_plots_that_cannot_be_drawn_are_a_note_on_the_page(recording, tmp_path, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("no room")

    monkeypatch.setattr("unifiedamp.recording.charts.drawings", fail)
    done = run(recording, "--html", tmp_path / "run.html")
    assert done.exit_code == 0
    assert "has no plots: ZeroDivisionError: no room" in done.stderr
    assert "No plots: ZeroDivisionError: no room." in checked((tmp_path / "run.html").read_text("utf-8")).words


def test_tensorboard_gets_scalars_and_histograms(tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    train(TensorBoard(tmp_path), steps=4)
    (file,) = tmp_path.iterdir()
    events = [Event.FromString(data) for data in framed(file.read_bytes())]
    values = {(event.step, value.tag): value for event in events for value in event.summary.value}
    tags = {tag for _, tag in values}
    assert {"scale", "flushed_scaled/w1", "flushed_true/w0", "exponents_true/w0"} <= tags
    assert {step for step, tag in values if tag == "scale"} == {1, 3}
    assert values[1, "scale"].simple_value == 8.0
    assert values[1, "flushed_scaled/w1"].simple_value == 1.0
    histogram = values[1, "exponents_true/w1"].histo
    assert (histogram.min, histogram.max, histogram.num) == (-40, -40, 1)


def framed(data):
    """Yield the records of an event file: length, a checksum, the data, a checksum."""
    place = 0
    while place < len(data):
        (length,) = struct.unpack_from("<Q", data, place)
        yield data[place + 12 : place + 12 + length]
        place += length + 16


def test_without_tensorboardx_the_hint_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ua.AmpError, match=re.escape("pip install tensorboardX")):
        TensorBoard(tmp_path)
