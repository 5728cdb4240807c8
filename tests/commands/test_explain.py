"""``unifiedamp explain``: the plan before training, and with ``--layers`` the layers and advice on their shapes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from command_runs import CLASSIFIER, CONV, MLP, mixed_policy

import unifiedamp as ua


def test_it_is_what_amp_explain_says(command, backend):
    done = command("explain", CONV, "--backend", backend, "--policy", "float32", "--json")
    assert done.code == 0
    amp = ua.Amp(backend, "float32")
    assert done.json["rows"] == amp.explain().to_dict()["rows"]
    assert done.json["backend"] == backend
    amp.close()


def test_the_table_has_every_row(command, backend):
    out = " ".join(command("explain", CONV, "--backend", backend, "--policy", "float32").out.split())
    for row in ua.Amp(backend, "float32").explain():
        assert row.setting in out
        assert row.effect in out


def test_warnings_are_part_of_the_answer(command, backend):
    """What the session warns of is told, once, and a policy that helps is not warned of."""
    policy = mixed_policy(backend)
    answers = ua.available_backends()[backend].capabilities.policies
    gains = answers[policy].helps if policy in answers else None  # an emulated policy promises nothing
    said = command("explain", CONV, "--backend", backend, "--policy", policy, "--json").json["warnings"]
    assert len(said) == (1 if gains is False else 0)


def test_a_policy_that_cannot_run_is_refused_with_its_reason(command, backend):
    answers = ua.available_backends()[backend].capabilities.policies
    refused = [name for name, answer in answers.items() if not answer]
    assert refused, "on a CPU at least float8 is"
    for name in refused:
        done = command("explain", CONV, "--backend", backend, "--policy", name)
        assert done.code == 2
        assert " ".join(answers[name].reason.split()) in done.err


@pytest.mark.parametrize(("config", "kinds"), [(CONV, ["conv"] * 3 + ["linear"]), (MLP, ["linear"] * 4)])
def test_layers_of_a_workload(command, backend, config, kinds):
    done = command("explain", config, "--backend", backend, "--policy", "float32", "--layers", "--json")
    layers = done.json["layers"]
    assert [one["kind"] for one in layers] == kinds
    assert {one["dtype"] for one in layers} == {"float32"}
    assert list(layers[-1]["sizes"].values())[-1] == 10
    assert done.json["shapes"] == []


def test_shapes_that_do_not_suit_tensor_cores(command, backend):
    """One input channel and ten classes: pad them to eight and sixteen, where the layer computes in 16 bits."""
    policy = mixed_policy(backend)
    found = command("explain", CONV, "--backend", backend, "--policy", policy, "--layers", "--json").json
    first, *_, last = found["layers"]
    wanted = {(first["layer"], 1, 8)} | ({(last["layer"], 10, 16)} if last["dtype"] != "float32" else set())
    assert {(one["layer"], one["size"], one["padded"]) for one in found["shapes"]} == wanted
    assert first["dtype"] == ua.Policy.parse(policy).compute_dtype


def test_a_layer_kept_in_float32_gets_no_advice(command, backend, tmp_path):
    policy = mixed_policy(backend)
    # As people run it: a process each, in which the layers must have the same names.
    arguments = ("explain", CONV, "--backend", backend, "--layers", "--json", "--policy")
    layer = command.apart(*arguments, policy).json["layers"][0]["layer"]
    text = f"{policy};layers={layer}:float32"
    found = command.apart(*arguments, text, popen=subprocess.Popen).json
    assert found["layers"][0]["dtype"] == "float32"
    assert layer not in [one["layer"] for one in found["shapes"]]


def test_float8_is_said_of_the_layers_that_have_it(command, backend):
    """Emulated, so that it runs anywhere; the last layer's ten outputs do not fit float8's tiles of sixteen."""
    options = {"amp": {"policy": "mixed_float8", "backend_options": {backend: {"emulate": True}}}}
    Path("f8.json").write_text(json.dumps({**options, "workload": str(CLASSIFIER), "settings": {"model": "mlp"}}))
    done = command("explain", "f8.json", "--backend", backend, "--layers", "--json")
    if done.code == 2:
        assert not ua.available_backends()[backend].capabilities.feature("float8")
        return
    *hidden, last = done.json["layers"]
    assert {one["dtype"] for one in hidden} == {"float8"}
    assert last["dtype"] != "float8"
    assert {one["layer"] for one in done.json["shapes"]} <= {last["layer"]}
