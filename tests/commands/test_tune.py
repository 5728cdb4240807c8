"""``unifiedamp tune``: what it finds with stand-in runs that have known answers, and real ones on every backend."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from command_runs import CLASSIFIER, CONV, a_mixed_policy, read_example

import unifiedamp as ua
from unifiedamp.config.arguments import read_config
from unifiedamp.workloads.training.loop import make_run

WORKLOAD = f"workload = '{CLASSIFIER}'\n"


def read(path):
    return tomllib.loads(Path(path).read_text(encoding="utf-8"))


def test_it_finds_policy_scale_and_layers(command, fake):
    """The stand-in: float16 is fastest, trains only with layers b and d in float32, and skips above 2**12."""
    done = command("tune", CONV, "--backend", "toy", "--policies", "mixed_bfloat16,mixed_float16",
                   "--rounds", 1, "--out", "tuned.toml", "--json")  # fmt: skip
    assert done.code == 0, done.err
    table = read("tuned.toml")
    assert table["amp"]["policy"] == {"name": "mixed_float16", "layer_overrides": {"b": "float32", "d": "float32"}}
    assert table["amp"]["loss_scale"]["initial_scale"] == 2.0**12
    assert table["amp"]["backend"] == "toy"
    evidence = done.json["policies"]
    assert list(evidence) == ["float32", "mixed_bfloat16", done.json["chosen"]]
    assert evidence[done.json["chosen"]]["float32_layers"] == ["b", "d"]
    assert evidence[done.json["chosen"]]["forecast_layers"] == ["b", "c", "d"], "where the search begins"
    assert evidence["mixed_bfloat16"]["forecast_layers"] == []
    assert evidence[done.json["chosen"]]["ratio"] == pytest.approx(3.0)
    assert evidence["mixed_bfloat16"]["ratio"] == pytest.approx(2.0)
    assert table["evidence"]["policies"].keys() == evidence.keys()
    assert table["evidence"]["why"] == done.json["why"]


def test_what_is_written_is_a_configuration(command, fake):
    command("tune", CONV, "--backend", "toy", "--policies", "mixed_float16", "--rounds", 1, "--out", "t.toml")
    amp = read_config("t.toml")
    assert str(amp["policy"]) == "mixed_float16;layers=b:float32,d:float32"
    settings, before = read_example(Path("t.toml")), read_example(CONV)
    assert (settings.train, settings.given) == (before.train, before.given)
    assert settings.workload.path.samefile(CLASSIFIER)
    text = Path("t.toml").read_text()
    assert text.startswith(CONV.read_text().splitlines()[0]), "comments stay"


def test_a_tolerance_that_is_wide_needs_no_layers(command, fake):
    command("tune", CONV, "--backend", "toy", "--policies", "mixed_float16", "--tolerance", 0.6, "--rounds", 1,
            "--out", "t.toml")  # fmt: skip
    assert read("t.toml")["amp"]["policy"] == "mixed_float16"


def test_without_gain_it_stays_with_float32(command, fake, monkeypatch):
    """A stand-in in which bfloat16 is as fast as float32; and a file written for float32 trains."""
    monkeypatch.setenv("FAKE_SLOW", "mixed_bfloat16")
    arguments = ("tune", CONV, "--backend", "toy", "--policies", "mixed_bfloat16", "--rounds", 1)
    done = command(*arguments, "--out", "t.toml")
    assert done.code == 0
    assert read("t.toml")["amp"]["policy"] == "float32"
    assert "nothing is worth changing: mixed_bfloat16 1.00 times as fast" in done.out


def test_nothing_is_overwritten_unless_asked(command, fake):
    Path("mine.toml").write_text(f'{WORKLOAD}[amp]\npolicy = "float32"\n\n[settings]\nmodel = "mlp" # mine\n')
    arguments = ("tune", "mine.toml", "--backend", "toy", "--policies", "mixed_bfloat16", "--rounds", 1)
    assert command(*arguments, "--out", "mine.toml").code == 2
    assert read("mine.toml")["amp"] == {"policy": "float32"}
    assert command(*arguments).code == 0
    assert read("mine.tuned.toml")["amp"]["policy"] == "mixed_bfloat16"
    done = command(*arguments)
    assert done.code == 2
    assert "mine.tuned.toml is there already: pass --write" in done.err
    assert command(*arguments, "--write").code == 0
    assert read("mine.toml")["amp"]["policy"] == "mixed_bfloat16"
    assert "# mine" in Path("mine.toml").read_text()


def test_json_configurations_stay_json(command, fake):
    Path("mine.json").write_text(
        json.dumps({"workload": str(CLASSIFIER), "amp": {"policy": "float32"}, "settings": {"model": "mlp"}})
    )
    assert command("tune", "mine.json", "--backend", "toy", "--policies", "mixed_bfloat16", "--rounds", 1).code == 0
    table = json.loads(Path("mine.tuned.json").read_text())
    assert table["amp"]["policy"] == "mixed_bfloat16"
    assert read_example(Path("mine.tuned.json")).given == {"model": "mlp"}


def test_a_loss_scale_of_your_own_is_kept(command, fake):
    Path("mine.toml").write_text(
        f'{WORKLOAD}[amp]\npolicy = "mixed_float16"\n[amp.loss_scale]\nkind = "dynamic"\ngrowth_interval = 7\n'
    )
    command("tune", "mine.toml", "--backend", "toy", "--policies", "mixed_float16", "--rounds", 1)
    scale = read("mine.tuned.toml")["amp"]["loss_scale"]
    assert (scale["growth_interval"], scale["initial_scale"]) == (7, 2.0**12)


def test_layers_have_the_same_names_in_the_next_model(backend, tmp_path):
    """A probe finds the layers that another probe of the same process named."""
    chosen = {"backend": backend, "policy": "float32"}
    names = []
    for model in ("conv", "conv", "mlp", "mlp"):
        run = make_run(read_example(CONV, tmp_path, amp=chosen, given={"model": model}))
        names.append([shape.layer for shape in run.amp.backend.layer_shapes.matmul_shapes([run.model])])
    assert names[0] == names[1]
    assert names[2] == names[3]


def test_it_runs_on_every_backend(command, backend):
    """A real probe: the file it writes trains, and a loss scale it found skips none of the first steps."""
    policy = a_mixed_policy(backend) or "float32"
    text = f"{policy};loss_scale=dynamic" if policy == "mixed_bfloat16" else policy
    Path("eager.toml").write_text(f"{WORKLOAD}[settings]\nmodel = 'mlp'\nbatch_size = 32\n")
    done = command("tune", "eager.toml", "--backend", backend, "--policies", text, "--steps", 10, "--rounds", 1,
                   "--out", "t.toml", "--json")  # fmt: skip
    assert done.code == 0, done.err
    found = done.json["policies"]
    assert found["float32"]["loss"] > 0
    assert read("t.toml")["amp"]["backend"] == backend
    assert read_example(Path("t.toml")).amp["backend"] == backend
    for name, one in found.items():
        if ua.Policy.parse(name).resolved_loss_scale.enabled:
            assert one["skipped"] == 0
            assert 1 <= one["initial_scale"] <= 2.0**24
