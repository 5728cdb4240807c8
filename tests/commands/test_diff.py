"""``unifiedamp diff``: what it prints, and how it exits; what it finds is in ``on_torch/test_torch_differences.py``."""

from __future__ import annotations

import json

import pytest

import unifiedamp as ua

torch = pytest.importorskip("torch")


def record(path, lr=0.5, width=4, compare=True):
    torch.manual_seed(0)
    amp = ua.Amp("torch", "float32", device="cpu")
    model = torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.Linear(width, 1))
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr))
    with amp.record(path, every=1, compare=compare):
        for x in (torch.ones(2, 3), torch.full((2, 3), 2.0)):
            amp.backward(lambda x=x: model(x).square().mean(), optimizer)
            amp.step(optimizer)
    amp.close()
    return path


@pytest.fixture
def runs(tmp_path):
    return {
        "one": record(tmp_path / "one.jsonl"),
        "again": record(tmp_path / "again.jsonl"),
        "rate": record(tmp_path / "rate.jsonl", lr=0.25),
        "wider": record(tmp_path / "wider.jsonl", width=5),
        "without": record(tmp_path / "without.jsonl", compare=False),
    }


def test_equal_runs_are_alike(command, runs):
    done = command("diff", runs["one"], runs["again"])
    assert done.code == 0
    assert "alike in 2 recorded steps" in done.out
    assert command("diff", runs["one"], runs["again"], "--json").json["first"] is None


def test_another_rate_is_an_update(command, runs):
    done = command("diff", runs["one"], runs["rate"])
    assert done.code == 1
    said = " ".join(done.out.split())
    assert "diverge in step 1, update: `0." in said
    assert "Cause: the gradients were alike" in said
    found = command("diff", runs["one"], runs["rate"], "--json")
    assert (found.code, found.json["schema"]) == (1, "unifiedamp-diff")
    assert {key: found.json["first"][key] for key in ("step", "part")} == {"step": 1, "part": "update"}
    assert command("diff", runs["one"], runs["rate"], "--ulp", "1e9").code == 0


@pytest.mark.parametrize(("other", "reason"), [("wider", "0.weight"), ("without", "compare=True")])
def test_what_cannot_be_compared_is_refused(command, runs, other, reason):
    done = command("diff", runs["one"], runs[other])
    assert done.code == 2
    assert reason in " ".join(done.err.split())


def with_step(path, change):
    """Change the file's second step."""
    lines = path.read_text().splitlines()
    step = json.loads(lines[2])
    change(step["compare"])
    path.write_text("\n".join([*lines[:2], json.dumps(step), *lines[3:]]) + "\n")


DAMAGED = {
    "no recording": (lambda path: path.write_text("nothing\n"), "is no recording"),
    "bytes": (lambda path: path.write_bytes(bytes(range(256)) * 9), "is no recording"),
    "not there": (lambda path: path.unlink(), "No such file"),
    "a short sketch": (lambda path: with_step(path, lambda it: it["layers"][0]["sketch"].pop()), "layers.0.sketch"),
    "no updates": (lambda path: with_step(path, lambda it: it.pop("update")), "compare.update: Field required"),
    "text": (lambda path: with_step(path, lambda it: it["layers"][0].update(norm="large")), "layers.0.norm"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_refused(command, runs, name):
    damage, said = DAMAGED[name]
    damage(runs["again"])
    done = command("diff", runs["one"], runs["again"])
    assert done.code == 2
    assert said in " ".join(done.err.split())
    assert "again.jsonl" in "".join(done.err.split())
    assert "Traceback" not in done.err


def test_a_line_that_a_kill_cut_off_is_left_out(command, runs):
    text = runs["again"].read_text()
    runs["again"].write_text(text[: len(text) - 500])
    done = command("diff", runs["one"], runs["again"])
    assert done.code == 0
    said = " ".join(done.out.split())
    assert "left out of the second recording: 1 line that could not be read" in said
    assert "alike in 1 recorded steps" in said
