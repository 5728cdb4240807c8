"""``unifiedamp diff`` over two frameworks: a network whose weights and activations lie in other layouts."""

import dataclasses
import itertools

import pytest
from three_frameworks import PARTS, recorded

import unifiedamp as ua
from unifiedamp.config import plugins
from unifiedamp.recording.difference import difference

HERE = [name for name in PARTS if plugins.is_installed(name)]
PAIRS = list(itertools.permutations(HERE, 2))
NAMES = {
    "torch": ["conv", "norm", "hidden", "head"], "tensorflow": ["stem", "stem_norm", "fc", "logits"],
    "mxnet": ["0", "1", "4", "5"],
}  # fmt: skip

PLANTED = {
    "alike": ({}, None),
    "conv weight": ({"wrong": "conv.weight"}, (1, "initial weights", 0)),
    "hidden bias": ({"wrong": "hidden.bias"}, (1, "initial weights", 2)),
    "rate": ({"rate": 0.12}, (1, "update", 0)),
    "labels": ({"labels": 2}, (2, "forward", "the loss")),
    "data": ({"data": 3}, (3, "forward", 0)),
    "dropout": ({"dropout": 0.5}, (1, "forward", 3)),
}


def where(found, backend):
    first = found.first
    if first is None:
        return None
    names = NAMES[backend]
    layer = next(
        (place for place, name in enumerate(names) if first.name in (name, f"{name}.{tail(first.name)}")), None
    )
    return first.step, first.part, first.name if layer is None else layer


def tail(name):
    return name.rpartition(".")[2]


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize(("backend", "other"), PAIRS)
def test_two_frameworks(backend, other, name):
    options, expected = PLANTED[name]
    assert where(difference(recorded(backend), recorded(other, **options)), backend) == expected


@pytest.mark.parametrize(("backend", "other"), PAIRS[:2])
def test_epsilon_of_adam(backend, other):
    """Equal ones are alike but for their different formulas; another one is an update."""
    runs = [recorded(backend, epsilon=1e-8, rate=0.01), recorded(other, epsilon=1e-2, rate=0.01)]
    assert where(difference(*runs), backend)[:2] == (1, "update")


@pytest.mark.parametrize("backend", HERE)
def test_another_policy_and_form(backend):
    """float32, eager, against a mixed policy, compiled; and the same with another rate."""
    other = "torch" if "torch" in HERE else backend
    assert difference(recorded(other), recorded(backend, policy="mixed_bfloat16", compiled=True)).first is None
    found = difference(recorded(other), recorded(backend, policy="mixed_bfloat16", compiled=True, rate=0.2))
    assert (found.first.step, found.first.part) == (1, "update")


@pytest.mark.parametrize(("backend", "other"), PAIRS[:1])
def test_a_layer_that_one_alone_has_is_named(backend, other):
    whole, part = recorded(backend), recorded(other)
    last = NAMES[other][-1]
    steps = []
    for step in part.steps:
        compared = dict(step["compare"])
        for key in ("before", "update", "gradients"):
            compared[key] = {name: each for name, each in compared[key].items() if not name.startswith(last)}
        steps.append({**step, "compare": compared})
    with pytest.raises(ua.ConfigError, match=f"the first one alone has the layer `{NAMES[backend][-1]}`"):
        difference(whole, dataclasses.replace(part, steps=steps))
