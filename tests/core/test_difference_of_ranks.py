"""``unifiedamp diff`` of runs on two ranks whose gradients become a mean in one and a sum in the other."""

import json

import pytest
from test_difference import WEIGHTS, record, sketched, vector

from unifiedamp.recording.difference import difference
from unifiedamp.recording.reading import collect

STRIPPED = ("sketch", "ordered")
AWAY = 0.01
"""Relative distance of a tensor that differs."""


def ranks_of(step, share, wrong=None, ordered=True):
    """Return what two ranks recorded, each ``share`` of the gradients; ``wrong``: one that rank 1 has 1.5 times."""

    def own(rank):
        factors = {name: share * (1.5 if rank and name == wrong else 1.0) for name in WEIGHTS}
        rows = {name: sketched(vector(f"gradient {name}") * factor) for name, factor in factors.items()}
        return {name: {key: row[key] for key in row if ordered or key != "ordered"} for name, row in rows.items()}

    rows = [{key: row[key] for key in row if key not in STRIPPED} for row in step["compare"]["layers"]]
    return {
        "kind": "ranks", "step": step["step"], "count": 2, "missing": [], "first": None, "bad": [],
        "local": {str(rank): own(rank) for rank in (0, 1)}, "layers": {"0": rows, "1": rows},
        "losses": {"0": share, "1": share},
    }  # fmt: skip


def run(reduction, wrong=None, away=None, backend="toy", ordered=True):
    """A run whose reduced gradients are those of :func:`record`, whatever the ranks' own are."""
    step = record(1, away or {}, 1.0)
    header = {
        "kind": "header", "format": "unifiedamp-recording", "version": 1, "time": 0.0, "unifiedamp": "0", "every": 1,
        "backend": backend, "framework": "numpy", "framework_version": "1", "device": "cpu", "policy": "float32",
        "epsilons": [], "ranks": 2, "reduction": reduction,
    }  # fmt: skip
    share = 1.0 if reduction == "mean" else 0.5
    return collect(json.dumps(each) for each in (header, step, ranks_of(step, share, wrong, ordered)))


def where(found):
    return found.first and (found.first.part, found.first.name, found.first.note)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"wrong": "hidden.weight"}, ("backward", "hidden.weight", "in the mean or sum of the ranks' own gradients")),
        ({"away": {"gradient head.weight": AWAY}}, ("reduction", "head.weight", "")),
        ({"away": {"update head.weight": AWAY}}, ("update", "head.weight", "")),
    ],
)
def test_a_mean_and_a_sum(changes, expected):
    found = difference(run("mean"), run("sum", **changes))
    assert where(found) == expected
    assert "gradients by the mean or sum of the ranks' own" in found.compared[0]


@pytest.mark.parametrize("ordered", [False, True])
def test_another_framework_is_compared_rank_by_rank_where_layouts_do_not_count(ordered):
    """Sketches of sorted values do not depend on layouts. Ranks of PyTorch do not record their own gradients."""
    wrong = {"wrong": "hidden.weight", "ordered": ordered, "backend": "other"}
    assert difference(run("sum"), run("sum", backend="other", ordered=ordered)).first is None
    found = difference(run("sum"), run("sum", **wrong))
    assert where(found) == (("backward", "hidden.weight", "on rank 1") if ordered else None)
    away = {"gradient head.weight": AWAY}
    found = difference(run("sum"), run("sum", backend="other", ordered=ordered, away=away))
    assert where(found)[:2] == ("reduction" if ordered else "backward", "head.weight")


def test_ranks_of_another_framework_that_reduce_otherwise():
    assert difference(run("mean"), run("sum", backend="other", ordered=False)).first is None
    found = difference(run("mean"), run("sum", backend="other", away={"output head": 0.5}))
    assert where(found)[:2] == ("forward", "head")


def test_where_a_rank_did_not_answer_the_losses_of_the_first_are_compared():
    whole, part = run("sum"), run("sum")
    for each in (whole, part):
        each.steps[0]["loss"] = 0.5  # its own part
    part.steps[0]["ranks"]["missing"] = [1]
    assert difference(whole, part).first is None
    part.steps[0]["loss"] = 0.6
    assert where(difference(whole, part))[:2] == ("forward", "the loss")
