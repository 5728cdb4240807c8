"""Where ``unifiedamp diff`` says that two runs diverge: planted distances of vectors that sketches hold exactly."""

import json
import math

import numpy as np
import pytest

from unifiedamp.backend.sketch import WIDTH, sketch_of
from unifiedamp.recording.difference import difference
from unifiedamp.recording.reading import collect
from unifiedamp.recording.sketched import to_json

LIMIT = 64 * 2.0**-23
"""Relative distance from which float32 tensors differ: 64 ULP, see ``unifiedamp.recording.distance``."""
ROWS = [("", "Net", "input"), ("hidden", "Linear", "output"), ("head", "Linear", "output"), ("", "Net", "output")]
WEIGHTS = ["hidden.weight", "head.weight"]


def vector(name, away=0.0):
    """Return ``WIDTH`` numbers, each in its own bucket, at a relative distance from those of 0 and a right angle."""
    one, other = np.random.default_rng(list(name.encode())).normal(size=(2, WIDTH))
    other -= one * (one @ other) / (one @ one)
    return one + away * other * np.linalg.norm(one) / np.linalg.norm(other)


def sketched(array):
    return to_json(sketch_of(np.asarray(array, np.float64)[None], batch=True)) | {"dtype": "float32"}


def record(number, away, loss):
    """Return a step's record; ``away`` holds distances: "output head", "gradient head.weight", …"""

    def of(what, names):
        return {name: sketched(vector(f"{what} {name}", away.get(f"{what} {name}", 0.0))) for name in names}

    layers = [
        {"layer": layer, "kind": kind, "place": place, "function": "",
         **sketched(vector(f"{place} {layer}", away.get(f"{place} {layer}", 0.0)))}
        for layer, kind, place in ROWS
    ]  # fmt: skip
    compare = {"layers": layers, "gradients": of("gradient", WEIGHTS), "before": of("weight", WEIGHTS),
               "update": of("update", WEIGHTS)}  # fmt: skip
    return {
        "kind": "step", "step": number, "reason": "every", "time": 0.0, "scale": 1.0, "next_scale": 1.0, "loss": loss,
        "applied": True, "applied_steps": number, "skipped_steps": 0, "gradients": {}, "activations": [],
        "non_finite": None, "compare": compare,
    }  # fmt: skip


def recording(*records, **changes):
    header = {
        "kind": "header", "format": "unifiedamp-recording", "version": 1, "time": 0.0, "unifiedamp": "0", "every": 1,
        "backend": "toy", "framework": "numpy", "framework_version": "1", "device": "cpu", "policy": "float32",
        "epsilons": [], **changes,
    }  # fmt: skip
    return collect(json.dumps(each) for each in (header, *records))


def first(away, loss=1.0):
    found = difference(recording(record(1, {}, 1.0)), recording(record(1, away, loss))).first
    return None if found is None else (found.part, found.name)


SMALL, LARGE = 0.9 * LIMIT, 1.1 * LIMIT
TURNED = 2 * math.sqrt(SMALL)
"""So far apart may gradients be, of outputs as far apart as ``SMALL``."""


@pytest.mark.parametrize(
    ("away", "expected"),
    [
        ({"weight head.weight": SMALL, "output hidden": SMALL, "gradient head.weight": SMALL}, None),
        ({"weight head.weight": LARGE}, ("initial weights", "head.weight")),
        ({"input ": LARGE}, ("data", "")),
        ({"output hidden": LARGE}, ("forward", "hidden")),
        # Four times as far as what it is computed from: its own weights, and the layers before it.
        ({"weight hidden.weight": SMALL, "output hidden": 3.9 * SMALL}, None),
        ({"weight hidden.weight": SMALL, "output hidden": 4.1 * SMALL}, ("forward", "hidden")),
        ({"weight head.weight": SMALL, "output hidden": LARGE}, ("forward", "hidden")),
        ({"output hidden": SMALL, "output head": 3.9 * SMALL}, None),
        ({"output hidden": SMALL, "output head": 4.1 * SMALL}, ("forward", "head")),
        # The last layer's gradient is computed first.
        ({"gradient head.weight": LARGE, "gradient hidden.weight": 2 * LARGE}, ("backward", "head.weight")),
        ({"output head": SMALL, "gradient head.weight": 0.9 * TURNED}, None),
        ({"output head": SMALL, "gradient head.weight": 1.1 * TURNED}, ("backward", "head.weight")),
        ({"update hidden.weight": LARGE}, ("update", "hidden.weight")),
        ({"gradient hidden.weight": SMALL, "update hidden.weight": 3.9 * SMALL}, None),
        ({"gradient hidden.weight": SMALL, "update hidden.weight": 4.1 * SMALL}, ("update", "hidden.weight")),
        ({"gradient hidden.weight": SMALL, "update head.weight": 1.1 * LARGE}, ("update", "head.weight")),
    ],
)
def test_what_is_farther_apart_than_rounding_is_named(away, expected):
    assert first(away) == expected


@pytest.mark.parametrize(
    ("away", "loss", "expected"),
    [
        ({}, 1 + SMALL, None),
        ({}, 1 + LARGE, ("forward", "the loss")),
        ({"output head": SMALL}, 1 + 3.9 * SMALL, None),
        ({"output head": SMALL}, 1 + 4.1 * SMALL, ("forward", "the loss")),
    ],
)
def test_a_loss_of_outputs_that_are_alike(away, loss, expected):
    assert first(away, loss) == expected


def test_the_distance_is_that_of_the_vectors():
    found = difference(recording(record(1, {}, 1.0)), recording(record(1, {"output head": 0.5}, 1.0))).first
    assert (found.distance, found.cosine) == pytest.approx((0.5 / math.hypot(1, 0.5), 1 / math.hypot(1, 0.5)))


@pytest.mark.parametrize("which", ["first", "second"])
def test_a_weight_that_the_loop_changes_between_steps(which):
    """Its update was the same in both runs, and then one run alone moved it."""

    def steps(moved):
        one, two = record(1, {}, 1.0), record(2, {}, 1.0)
        for name in WEIGHTS:
            now = vector(f"weight {name}") + vector(f"update {name}")
            two["compare"]["before"][name] = sketched(now * 0.5 if moved and name == "head.weight" else now)
        return recording(one, two)

    found = difference(steps(which == "first"), steps(which == "second")).first
    assert (found.step, found.part, found.name) == (2, "between recorded steps", "head.weight")
    assert found.note == f"the {which} run changed it after step 1 had ended"
    assert found.distance == pytest.approx(0.5)


def test_a_setting_of_one_run_alone_is_listed():
    one = recording(record(1, {}, 1.0), settings=[["tf32", "on", "set"], ["threads", "2", "found"]])
    other = recording(record(1, {}, 1.0), settings=[["threads", "2", "found"], ["seed", "1", "set"]])
    assert difference(one, other).settings == [("tf32", "on: set", "-"), ("seed", "-", "1: set")]


def wrapped(step):
    """Return a record of the same step as DistributedDataParallel around the model records it."""
    compare = step["compare"]
    inner = [{**row, "layer": f"module.{row['layer']}".rstrip(".")} for row in compare["layers"]]
    outer = [{**row, "layer": "", "kind": "DistributedDataParallel"} for row in (inner[0], inner[-1])]
    named = {part: {f"module.{name}": one for name, one in compare[part].items()}
             for part in ("gradients", "before", "update")}  # fmt: skip
    return {**step, "compare": {**named, "layers": [outer[0], *inner[1:], outer[1]]}}


@pytest.mark.parametrize("both", [False, True])
def test_a_model_that_is_wrapped_is_compared_by_the_names_inside(both):
    away = record(1, {"output head": LARGE}, 1.0)
    for other, expected in ((record(1, {}, 1.0), None), (away, ("forward", "head"))):
        one = record(1, {}, 1.0)
        found = difference(recording(wrapped(one) if both else one), recording(wrapped(other))).first
        assert (found and (found.part, found.name)) == expected
