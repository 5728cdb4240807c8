"""Sinks write a recording with the real libraries, without a network, and finish their runs however it ends."""

import json
import math
import socket
import struct
import subprocess
import sys
import textwrap

import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import probe_run
from unifiedamp.conformance.harness import load_harness
from unifiedamp.recording import TensorBoard

pytest.importorskip("torch")
SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=3)
TINY = 2.0**-30


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    """No test may leave this machine, and each has its own settings."""
    connect = socket.socket.connect

    def local(self, address):
        assert not isinstance(address, tuple) or address[0] in ("127.0.0.1", "localhost", "::1"), address
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local)
    for name in ("WANDB_MODE", "WANDB_DIR", "MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    settings = {"WANDB_SILENT": "true", "MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


def train(*targets, every=2, gradients=(1.0, 1.0, math.inf, 1.0), fail_at=None, log=True):
    """Feed a probe; the second parameter's gradient is tiny."""
    run = probe_run(load_harness("torch"), values=(1.0, 1.0), loss_scale=SCALE)
    with run.amp.record(*targets, every=every) as recorder:
        for step, gradient in enumerate(gradients, 1):
            if step == fail_at:
                raise KeyError("the loop failed")
            run.feed(gradient, TINY)
            if log:
                recorder.log(epoch=step, loss=math.inf if math.isinf(gradient) else 0.5 * step)
    return run.amp


# -- Weights & Biases ------------------------------------------------------------------------------------------------


def framed(data, block=32768):
    """Yield the records of a file of W&B's, in the log format of LevelDB: blocks of (checksum, length, kind, bytes)."""
    place, parts = 7, []
    while place + 7 <= len(data):
        if block - place % block < 7:
            place += block - place % block
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        parts.append(data[place + 7 : place + 7 + length])
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield b"".join(parts)
            parts = []


class WandbRun:
    """What a run wrote: rows of history, configuration and exit code, from its file on disk."""

    def __init__(self, folder):
        import wandb
        from wandb.proto import wandb_internal_pb2

        wandb.teardown()  # ends W&B's own process, which writes the file
        (file,) = folder.glob("wandb/offline-run-*/*.wandb")
        self.rows, self.config, self.exits = [], {}, []
        for data in framed(file.read_bytes()):
            record = wandb_internal_pb2.Record.FromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "history":
                items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                self.rows.append({key: json.loads(value) for key, value in items.items()})
            elif kind == "exit":
                self.exits.append(record.exit.exit_code)
            elif kind == "config":
                self.config.update({item.key: json.loads(item.value_json) for item in record.config.update})


@pytest.fixture
def wandb(tmp_path):
    library = pytest.importorskip("wandb")
    yield library
    if library.run is not None:
        library.finish()


def wandb_sink(*args, **options):
    from unifiedamp.integrations.wandb import WandbSink

    return WandbSink(*args, **options)


def test_wandb_gets_a_run_of_its_own(wandb, tmp_path):
    sink = wandb_sink(dir=str(tmp_path), project="p")
    train(sink)
    assert sink.run is None
    assert wandb.run is None
    found = WandbRun(tmp_path)
    assert found.exits == [0]
    assert found.config["unifiedamp"]["policy"].startswith("float32;")
    rows = {(row["amp/step"], "amp/epoch" in row): row for row in found.rows}
    assert list(rows) == [(1, False), (1, True), (2, False), (2, True), (3, False), (3, True), (4, False), (4, True)]
    assert rows[2, False]["amp/scale"] == 4.0
    assert rows[2, False]["amp/flushed_true/w1"] == 1.0
    assert rows[2, False]["amp/exponents_true/w1/values"] == [1]
    assert (rows[4, True]["amp/scale"], rows[4, True]["amp/skipped_steps"], rows[4, True]["amp/loss"]) == (2.0, 1, 2.0)
    assert rows[3, True]["amp/loss"] in ("Infinity", math.inf)


def test_an_exception_fails_the_run_of_wandb(wandb, tmp_path):
    with pytest.raises(KeyError):
        train(wandb_sink(dir=str(tmp_path)), fail_at=3)
    found = WandbRun(tmp_path)
    assert found.exits == [1]
    assert {row["amp/step"] for row in found.rows} == {1, 2}


def test_a_run_of_the_users_goes_on(wandb, tmp_path):
    run = wandb.init(mode="offline", dir=str(tmp_path))
    run.log({"mine": 1})
    train(wandb_sink(run))
    run.log({"mine": 2})
    with pytest.raises(KeyError):
        train(wandb_sink(), fail_at=2)
    run.log({"mine": 3})
    run.finish()
    found = WandbRun(tmp_path)
    assert [row["mine"] for row in found.rows if "mine" in row] == [1, 2, 3]
    assert found.exits == [0]
    assert max(row.get("amp/step", 0) for row in found.rows) == 4


def test_rows_that_the_user_numbers(wandb, tmp_path):
    run = wandb.init(mode="offline", dir=str(tmp_path))
    amp = probe_run(load_harness("torch"), loss_scale=SCALE)
    with amp.amp.record(wandb_sink(run, commit=False), every=None) as recorder:
        for step in range(3):
            amp.feed(1.0)
            recorder.log(loss=float(step))
            run.log({"mine": step}, step=step)
    run.finish()
    rows = WandbRun(tmp_path).rows
    assert [row["mine"] for row in rows] == [0, 1, 2]
    # What is logged joins the row in progress, which W&B ends when the next number comes.
    assert [(row.get("amp/step"), row.get("amp/loss")) for row in rows] == [(2, 1), (3, 2), (None, None)]


def test_settings_beside_a_run_are_refused(wandb, tmp_path):
    run = wandb.init(mode="offline", dir=str(tmp_path))
    with pytest.raises(ua.ConfigError, match="project: settings of wandb.init"):
        wandb_sink(run, project="p")


# -- MLflow ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Folder of runs, and a client of it."""
    mlflow = pytest.importorskip("mlflow")
    uri = (tmp_path / "runs").as_uri()
    mlflow.set_tracking_uri(uri)
    yield uri, mlflow.MlflowClient(uri)
    while mlflow.active_run() is not None:
        mlflow.end_run()


def mlflow_sink(*args, **options):
    from unifiedamp.integrations.mlflow import MlflowSink

    return MlflowSink(*args, **options)


def history(client, run_id, name):
    return [(metric.step, metric.value) for metric in client.get_metric_history(run_id, name)]


def test_mlflow_gets_a_run_of_its_own(store):
    uri, client = store
    sink = mlflow_sink(tracking_uri=uri, experiment="amp", run_name="first")
    train(sink)
    run = client.get_run(sink.run_id)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "first")
    assert client.get_experiment(run.info.experiment_id).name == "amp"
    assert run.data.tags["unifiedamp.policy"].startswith("float32;")
    assert history(client, sink.run_id, "amp/loss")[-1] == (4, 2.0)
    assert (3, math.inf) in history(client, sink.run_id, "amp/loss")
    assert history(client, sink.run_id, "amp/flushed_true/w1") == [(1, 1.0), (2, 1.0), (4, 1.0)]
    assert run.data.metrics["amp/skipped_steps"] == 1.0
    assert history(client, sink.run_id, "amp/scale")[-1] == (4, 2.0)


def test_an_exception_fails_the_run_of_mlflow(store):
    uri, client = store
    sink = mlflow_sink(tracking_uri=uri)
    with pytest.raises(KeyError):
        train(sink, fail_at=3)
    assert client.get_run(sink.run_id).info.status == "FAILED"
    train(sink)  # a sink that is used again goes on with its run
    assert client.get_run(sink.run_id).info.status == "FINISHED"


def test_an_active_run_goes_on(store):
    import mlflow

    _, client = store
    with mlflow.start_run() as run:
        train(mlflow_sink())
        assert client.get_run(run.info.run_id).info.status == "RUNNING"
        mlflow.log_metric("mine", 1.0)
    named = mlflow_sink(run.info.run_id)
    train(named)
    data = client.get_run(run.info.run_id)
    assert data.info.status == "FINISHED"
    assert {"mine", "amp/loss"} <= data.data.metrics.keys()


def test_an_unknown_run_or_place_is_named(store):
    with pytest.raises(ua.ConfigError, match="no-such-run"):
        mlflow_sink("no-such-run")
    with pytest.raises(ua.ConfigError, match="MlflowSink"):
        mlflow_sink(tracking_uri="nonsense://x")


def test_names_that_mlflow_refuses(store):
    from unifiedamp.integrations.mlflow import metric_name

    _, client = store
    names = ["a[0]/b", "a(0)/b", "../up", "x//y", "é" * 400, "plain/name-1 :2.b", "y" * 251]
    taken = [metric_name(name) for name in names]
    assert len(set(taken)) == len(names)
    assert taken[5] == names[5]
    run_id = client.create_run("0").info.run_id if client.get_experiment("0") else None
    run_id = run_id or client.create_run(client.create_experiment("x")).info.run_id
    for name in taken:
        client.log_metric(run_id, name, 1.0)
    assert set(client.get_run(run_id).data.metrics) == set(taken)


SCRIPT = """
    import sys
    sys.path[:0] = {path!r}
    from unifiedamp.conformance.driver import probe_run
    from unifiedamp.conformance.harness import load_harness
    from unifiedamp.integrations.mlflow import MlflowSink
    run = probe_run(load_harness("torch"))
    sink = MlflowSink(tracking_uri={uri!r})
    run.amp.record(sink)
    run.feed(1.0)
    print(sink.run_id, flush=True)
    {end}
"""


@pytest.mark.parametrize(("end", "status"), [("", "FINISHED"), ("raise KeyError('late')", "FAILED")])
def test_a_process_that_closes_nothing(store, end, status):
    uri, client = store
    code = textwrap.dedent(SCRIPT.format(path=sys.path, uri=uri, end=end))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert client.get_run(done.stdout.strip()).info.status == status, done.stderr


# -- all of them -----------------------------------------------------------------------------------------------------


class Told:
    """A sink that writes down what happens to it."""

    def __init__(self, breaks=False):
        self.calls, self.breaks = [], breaks

    def write(self, record):
        self.calls.append(record["kind"])

    def fail(self, error):
        self.calls.append(repr(error))

    def close(self):
        self.calls.append("close")
        if self.breaks:
            raise OSError("disk full")


def test_each_sink_is_told_and_closed_though_another_fails():
    first, second = Told(), Told(breaks=True)
    with pytest.raises(OSError, match="disk full") as caught:
        train(first, second, fail_at=2)
    assert isinstance(caught.value.__context__, KeyError)
    assert first.calls == ["header", "step", "numbers", "KeyError('the loop failed')", "close"]
    assert second.calls == first.calls


def test_all_at_once(store, wandb, tmp_path):
    uri, client = store
    sink = mlflow_sink(tracking_uri=uri)
    train(tmp_path / "run.jsonl", TensorBoard(tmp_path / "board"), wandb_sink(dir=str(tmp_path)), sink)
    lines = (tmp_path / "run.jsonl").read_text().splitlines()
    assert len(WandbRun(tmp_path).rows) == len(lines) - 1 == 8
    assert len(history(client, sink.run_id, "amp/scale")) == 8
    assert list((tmp_path / "board").iterdir())


def test_without_recorded_steps_any_backend_logs():
    import toy.registered  # noqa: F401

    records = []
    run = probe_run(load_harness("toy"), loss_scale=SCALE)
    with run.amp.record(records.append, every=None) as recorder:
        for gradient in (1.0, math.inf, 1.0):
            run.feed(gradient)
            recorder.log(gradient=gradient)
        with pytest.raises(ua.WrongObjectError, match=r"recorder.log: name must be a number, got 'text'"):
            recorder.log(name="text")
    recorder.log(late=1.0)
    logged = [record for record in records if record["kind"] == "numbers"]
    assert [(each["step"], each["scale"], each["skipped_steps"]) for each in logged] == [
        (1, 4.0, 0),
        (2, 2.0, 1),
        (3, 2.0, 1),
    ]
    assert [each["numbers"]["gradient"] for each in logged] == [1.0, "inf", 1.0]
