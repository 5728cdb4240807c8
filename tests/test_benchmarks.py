"""The benchmarks run, compare what they say they compare, and write what the report reads. Nothing here is timed."""

import dataclasses
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

import forked
import pytest

from unifiedamp.conformance.harness import load_harness
from unifiedamp.conformance.plugin import peers

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import race  # noqa: E402
import record  # noqa: E402
import remote  # noqa: E402
import report  # noqa: E402
import timing  # noqa: E402


def backends() -> list[str]:
    """Those whose native loop is written for the version that is installed."""
    names = [name for name in peers() if (BENCHMARKS / "native" / f"{name}_amp.py").exists()]
    # Keras 2 has another native loop; MXNet 2's own amp.init("bfloat16") fails with KeyError: 'cast'.
    written_for = {"tensorflow": ("keras", "3"), "mxnet": ("mxnet", "1")}
    for name, (distribution, major) in written_for.items():
        if name in names and version(distribution).split(".")[0] != major:
            names.remove(name)
    return names


def run(script, backend, *options, out):
    """Run a benchmark that measures on this machine's device; return its record and what it printed.

    One is run as people do, and starts a process for the backend; of the others, that process's own part.
    """
    support = load_harness(backend).capabilities().policies["mixed_bfloat16"]
    if not support:
        assert backend == "mxnet", support.reason
        pytest.skip(support.reason)
    which = [backend] if script == "overhead" else ["--measure", backend]
    command = [sys.executable, str(BENCHMARKS / f"{script}.py"), *which, "--smoke", "--pairs", "2", "--seconds", "5"]
    command += [*options, "--out", str(out)]
    ran = forked.run(command, env={**os.environ, "COLUMNS": "160"})
    assert ran.returncode == 0, ran.stderr
    (path,) = out.glob(f"{script}-{backend}*.json")
    return json.loads(path.read_text(encoding="utf-8")), ran.stdout


torch_only = pytest.mark.skipif("torch" not in backends(), reason="torch is not installed")


class Recorder:
    """Loops that write down who ran, in place of a clock."""

    def __init__(self, monkeypatch, costs):
        self.log, self.now = [], 0.0
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now)
        self.loops = [timing.Loop(self.step(name, cost), lambda: None) for name, cost in costs.items()]

    def step(self, name, cost):
        def run():
            self.log.append(name)
            self.now += cost

        return run


def test_turns_alternate_and_count_steps(monkeypatch):
    recorder = Recorder(monkeypatch, {"a": 0.002, "b": 0.004})
    row = timing.compare({"recipe": "r"}, *recorder.loops, pairs=4)
    assert row.steps_per_turn == round(timing.TURN_SECONDS / 0.004)
    measured = recorder.log[2 * (timing.WARM_UP + 3) :]
    n = row.steps_per_turn
    assert "".join(measured) == ("a" * n + "b" * n + "b" * n + "a" * n) * 2
    assert (row.first_ms, row.second_ms) == pytest.approx((2.0, 4.0))
    assert (row.ratio, row.low, row.high) == pytest.approx((0.5, 0.5, 0.5))


def test_the_interval_holds_the_median_and_narrows():
    values = [1.0 + 0.01 * (i % 7) for i in range(50)]
    low, high = timing.bootstrap(values)
    wide = timing.bootstrap([1.0 + 0.1 * (i % 7) for i in range(50)])
    assert low <= 1.03 <= high
    assert high - low < wide[1] - wide[0]


def test_rounds_end_when_their_time_is_up(monkeypatch):
    recorder = Recorder(monkeypatch, {"a": 1.0, "b": 1.0})
    assert len(timing.in_rounds(recorder.loops, (1, 1), rounds=100, seconds=5.0)) == 3
    assert len(timing.in_rounds(recorder.loops, (1, 1), rounds=100, seconds=0.0)) == timing.LEAST_ROUNDS


def test_a_race_holds_each_against_those_that_stay(monkeypatch):
    recorder = Recorder(monkeypatch, {"slow": 0.004, "fast": 0.001, "ours": 0.0005})
    running = race.Race("img", 64, race.Limits(rounds=6, turn=0.01))
    rows = {}
    for name, loop in zip(("slow", "fast", "ours"), recorder.loops, strict=True):
        rows[name] = running.enter({"by": name}, name, race.Ready(loop), stays=name != "ours")
    assert {name: row.ms for name, row in rows.items()} == pytest.approx({"slow": 4.0, "fast": 1.0, "ours": 0.5})
    assert rows["ours"].rate == pytest.approx(128_000)
    ratios = {name: {other: ratio for other, (ratio, _, _) in row.ratios.items()} for name, row in rows.items()}
    assert ratios["slow"] == {"slow": 1.0}
    assert ratios["fast"] == pytest.approx({"slow": 0.25, "fast": 1.0})
    assert ratios["ours"] == pytest.approx({"slow": 0.125, "fast": 0.5})
    # Each turn is about as long, whoever runs; who begins a round changes.
    slow, fast, ours = "s" * 2, "f" * 10, "o" * 20
    last = "".join(name[0] for name in recorder.log)
    assert last.endswith((slow + fast + ours + fast + ours + slow + ours + slow + fast) * 2)


def test_a_race_goes_on_without_one_that_fell_out(monkeypatch):
    recorder = Recorder(monkeypatch, {"a": 0.001, "b": 0.002})
    running = race.Race("img", 1, race.Limits(rounds=2))
    running.enter({"by": "a"}, "a", race.Ready(recorder.loops[0]), stays=True)
    running.drop(recorder.loops[0])
    assert not running.enter({"by": "b"}, "b", race.Ready(recorder.loops[1]), stays=False).ratios


def test_warming_up_keeps_the_losses_it_began_and_ended_with(monkeypatch):
    losses = iter(range(1000))
    loop = timing.Loop(lambda: next(losses), lambda: None)
    used = []
    ready = race.warm_up(loop, float, lambda run: used.append(run()) or {"peak": 7})
    assert ready.losses == (0.0, race.WARM_UP - 1.0)
    assert (ready.memory, len(used), next(losses)) == ({"peak": 7}, 1, race.WARM_UP + 3)


class Counts:
    """A module of ``native`` for a loop that only counts."""

    number = float

    @staticmethod
    def memory(run):
        run()
        return {"peak": os.getpid()}


def counting():
    steps = iter(range(10**9))
    return timing.Loop(lambda: next(steps), lambda: None), Counts


def breaking():
    raise MemoryError("too small\na device")


def test_a_loop_in_another_process_takes_turns():
    there = remote.Remote(counting, (), 60)
    try:
        ready = there.ready()
        assert ready.losses == (0.0, race.WARM_UP - 1.0)
        assert ready.memory["peak"] != os.getpid()
        assert 0 < there.turn(1000) < 1
        there.close()
        with pytest.raises(remote.RemoteError, match="has ended"):
            there.turn(1)
    finally:
        there.close()


def test_what_fails_in_another_process_is_told(capfd):
    there = remote.Remote(breaking, (), 60)
    with pytest.raises(remote.RemoteError, match="^MemoryError: too small$") as found:
        there.ready()
    assert found.value.remote is there
    assert "breaking" in capfd.readouterr().err


def test_a_race_is_shown_with_what_it_was_not_able_to_measure(tmp_path, capsys):
    row = race.Standing(
        {"by": "ours"}, 2.0, 500.0, "img/s", {"native AMP": (0.5, 0.4, 0.625)}, {"peak": 3 << 20}, (1.0,), 1.0, 4, 9
    )
    rows = [row, race.failure({"by": "theirs"}, "theirs is not installed")]
    for shown, cell in (("time", "0.500 (0.400-0.625)"), ("speed", "2.000 (1.600-2.500)")):
        record.write_race(tmp_path / "peers-torch.json", "a race", ["native AMP"], shown, record.hardware(), rows)
        page = report.details(tmp_path)
        assert f"| ours | 2.000 | 500 img/s | {cell} | 3 |  | 4 × 9 |" in page
        assert "Not measured: theirs: theirs is not installed" in page
        record.show(json.loads((tmp_path / "peers-torch.json").read_text(encoding="utf-8")))
        assert cell in capsys.readouterr().out


def test_a_gpu_is_told():
    gpu = {"name": "NVIDIA Something", "driver": "1.2", "compute_capability": "9.0"}
    row = dataclasses.asdict(timing.Comparison({"recipe": "r"}, 1.0, 1.0, 1.0, 1.0, 1.0, 2, 1))
    found = {"hardware": record.hardware(gpu), "versions": {}, "command": "c", "date": "d", "rows": [row]}
    assert "GPU name NVIDIA Something, driver 1.2, compute capability 9.0" in report.provenance(found)
    assert "gpu" not in record.hardware(None)


def test_the_page_is_that_of_the_kept_results():
    assert report.PAGE.read_text(encoding="utf-8") == report.page(record.RESULTS)
    assert report.DETAILS.read_text(encoding="utf-8") == report.details(record.RESULTS)
    assert report.TUNING_PAGE.read_text(encoding="utf-8") == report.tuning_page(record.RESULTS)


def test_smoke_is_not_kept():
    command = [sys.executable, str(BENCHMARKS / "overhead.py"), "--smoke"]
    ran = forked.run(command)
    assert ran.returncode == 2
    assert "--out" in ran.stderr


@pytest.mark.parametrize("name", backends())
def test_overhead_runs_and_is_reported(name, tmp_path):
    found, _ = run("overhead", name, "--recipes", "mlp 3x256", "--forms", "eager", out=tmp_path)
    assert [row["labels"]["loss scale"] for row in found["rows"]] == ["none", "dynamic"]
    assert all(row["pairs"] == 2 and row["low"] <= row["ratio"] <= row["high"] for row in found["rows"])
    assert found["command"].startswith(f"python benchmarks/overhead.py {name} ")
    assert {"cpu", "cores", "load_before"} <= set(found["hardware"])
    page = report.details(tmp_path)
    assert f"### {name}: unifiedamp over native" in page
    assert f"{found['rows'][0]['ratio']:.3f}" in page


@torch_only
def test_tuning_is_measured_item_by_item(tmp_path):
    """What is measured elsewhere too runs here at its smallest, eager; what the device lacks is said."""
    items = ("channels_last", "tf32", "fused_optimizer", "set_to_none", "checkpoint_layers", "prefetch")
    found, printed = run("tuning", "torch", "--items", *items, out=tmp_path)
    assert [row["labels"]["item"] for row in found["rows"]] == [item for item in items if item != "tf32"]
    assert "tf32: not measured: TF32 is of NVIDIA's GPUs" in printed
    assert found["columns"] == ["on", "off"]


@torch_only
def test_peers_run_and_say_who_is_not_installed(tmp_path):
    wanted = ("Accelerate", "Fabric", "ours eager")
    options = ("--recipes", "mlp 3x256", "--contestants", *wanted)
    found, printed = run("peers", "torch", *options, out=tmp_path)
    rows = {row["labels"]["by"]: row for row in found["rows"]}
    assert list(rows) == ["native AMP", *wanted]
    for name, row in rows.items():
        if row["failed"]:
            assert name in wanted[:2]
            assert row["failed"].endswith("is not installed")
        else:
            assert row["ratios"]["native AMP"][0] > 0
            # All train the same model from the same weights.
            assert row["losses"] == pytest.approx(rows["native AMP"]["losses"], rel=0.05, abs=0.02)
            assert f"mlp 3x256, 8, {name}: {row['ms']:.3f} ms" in printed


@pytest.mark.parametrize("name", backends())
def test_frameworks_hold_ours_against_float32(name, tmp_path):
    options = ("--recipes", "wide mlp 3x2048", "--configurations", "fp32 eager", "ours eager", "--jobs", "2")
    found, _ = run("frameworks", name, *options, out=tmp_path)
    plain, ours = found["rows"]
    assert found["against"] == ["fp32 eager"]
    assert (plain["labels"]["configuration"], ours["labels"]["by"]) == ("fp32 eager", 'compile="off"')
    assert plain["failed"] == ours["failed"] == ""
    assert ours["losses"] == pytest.approx(plain["losses"], rel=0.05, abs=0.05)
    assert plain["losses"][1] < 0.7 * plain["losses"][0]


@pytest.mark.parametrize("name", backends())
def test_scaling_counts_tensors(name, tmp_path):
    found, _ = run("scaling", name, "--tensors", "6", "10", "--forms", "ours eager", out=tmp_path)
    assert [(row["labels"]["tensors"], row["labels"]["by"]) for row in found["rows"]] == [
        (number, by) for number in ("6", "10") for by in ("native AMP", "ours eager")
    ]
    assert all(row["failed"] == "" for row in found["rows"])


@torch_only
def test_models_are_the_published_ones():
    import scaling
    import torch
    from nets import torch_nets
    from recipes import RECIPES, Parts

    with torch.device("meta"):
        sizes = {
            name: sum(parameter.numel() for parameter in torch_nets.make_model(RECIPES[name]).parameters())
            for name in ("ResNet-50 224", "GPT-2 small 1024")
        }
    # As torchvision's documentation and the GPT-2 checkpoints have it.
    assert sizes == {"ResNet-50 224": 25_557_032, "GPT-2 small 1024": 124_439_808}
    assert len(list(Parts("torch", scaling.chain(100, 8)).model().parameters())) == 100


TRAINED = [(name, "mlp 3x256") for name in backends()]
if "torch" in backends():
    TRAINED += [("torch", "mlp 3x256, AdamW"), ("torch", "ResNet-50 28"), ("torch", "GPT-2 small 1024")]


@pytest.mark.parametrize(("name", "recipe"), TRAINED)
def test_native_and_layered_loops_train_alike(name, recipe):
    """Both sides do the same work: from the same weights, their losses after some steps agree within bfloat16."""
    support = load_harness(name).capabilities().policies["mixed_bfloat16"]
    if not support:
        assert name == "mxnet", support.reason
        pytest.skip(support.reason)
    command = [sys.executable, "-c", LOSSES.format(folder=str(BENCHMARKS), name=name, recipe=recipe)]
    ran = forked.run(command)
    assert ran.returncode == 0, ran.stderr
    ours, theirs = json.loads(ran.stdout.rpartition("losses:")[2])
    assert ours[-1] < 0.7 * ours[0]
    assert ours == pytest.approx(theirs, rel=0.05, abs=0.02)


LOSSES = """
import importlib, json, sys
sys.path.insert(0, {folder!r})
import cli
import unifiedamp as ua
from recipes import RECIPES, Parts, find, layered

native = cli.native_of({name!r})
amp = ua.Amp({name!r}, native.low(), loss_scale="dynamic", compile="off")
parts = Parts({name!r}, find({recipe!r}, smoke={recipe!r}[0] != "m"))
ours = layered(amp, parts)
with native.scope():
    model = parts.model()
    step = native.train_step(model, parts.optimizer(model), parts.loss_fn, 2.0**16, False)
x, y = native.tensor(parts.images), native.tensor(parts.labels)
losses = [], []
for _ in range(30):
    losses[0].append(native.number(ours()))
    with native.around():
        losses[1].append(native.number(step(x, y)))
print("losses:" + json.dumps(losses))
"""
