"""Where inf or nan appeared first, of what several ranks say of one step."""

import pytest

from unifiedamp.backend.recording import BUCKETS, GradientCounts, LocalStep, RecordedStep
from unifiedamp.recording.ranks import MergedRanks, merge

ORDER = ["layer0.w", "layer1.w", "layer2.w"]


def rank(number, place=None, gradients=(), reduced=(), looked=True, non_finite=True):
    """What rank ``number`` says: the place of the first layer whose output overflowed, and its gradients that did."""
    layer = None if place is None else {"layer": f"layer{place}"}
    gradient = next((name for name in ORDER if name in gradients), None)
    return {
        "rank": number,
        "loss": 1.0,
        "first_activation": layer,
        "place": place,
        "non_finite": non_finite,
        "first_gradient": gradient,
        "gradients": list(gradients),
        "looked": looked,
        "reduced": list(reduced),
    }


@pytest.mark.parametrize(
    ("ranks", "first"),
    [
        ([rank(0, 2), rank(1, 0), rank(2, 1)], ("forward", [1], "layer0")),
        ([rank(0, 1), rank(1, 2), rank(2, 1)], ("forward", [0, 2], "layer1")),
        ([rank(0, gradients=["layer0.w"]), rank(1, 2)], ("forward", [1], "layer2")),
        ([rank(0, gradients=["layer0.w"]), rank(1, gradients=["layer1.w", "layer0.w"])], ("backward", [1], "layer1.w")),
        ([rank(0), rank(1, gradients=["layer0.w"], reduced=["layer2.w"])], ("backward", [1], "layer0.w")),
        ([rank(0, reduced=["layer0.w", "layer1.w"]), rank(1)], ("reduction", [], "layer1.w")),
        ([rank(0, reduced=["layer0.w"]), rank(1, looked=False)], None),
        ([rank(0, 1, non_finite=False), rank(1, non_finite=False)], None),
    ],
)
def test_the_first_of_all_ranks_is_named(ranks, first):
    """A layer in the order of the forward pass, else a gradient in the order of the backward pass, else of the sum."""
    record = merge(7, ranks[::-1], [0, 1, 2], ORDER)
    assert record["first"] == (first and dict(zip(("during", "ranks", "name"), first, strict=True)))
    assert record["missing"] == [number for number in (0, 1, 2) if number >= len(ranks)]
    assert (record["step"], record["count"]) == (7, 3)


class Messages:
    """Between three processes, in one."""

    ranks = (0, 1, 2)

    def __init__(self, rank, posted):
        self.rank, self._posted = rank, posted

    def post(self, step, text):
        self._posted[self.rank] = text

    def ready(self, step, seconds):
        return len(self._posted) == 2

    def take(self, step):
        return self._posted


def process(number, posted, bad=None, skipped=True):
    """Record a step on both replicas of a process, where the gradients of rank ``bad`` are not finite."""
    local = [LocalStep(rank, finite={"layer0.w": rank != bad}) for rank in (2 * number, 2 * number + 1)]
    counts = GradientCounts([0] * BUCKETS, [0] * BUCKETS)
    seen = RecordedStep(gradients={"layer0.w": counts}, local=local, unreduced=True)
    ranks = MergedRanks(Messages(number, posted))
    return ranks, ranks.note(7, seen, ORDER, skipped, {})


@pytest.mark.parametrize(
    ("bad", "skipped", "first"),
    [
        (None, False, None),
        (3, True, {"during": "backward", "ranks": [3], "name": "layer0.w"}),
        (None, True, {"during": "reduction", "ranks": [], "name": ""}),
    ],
)
def test_several_replicas_in_each_of_several_processes(bad, skipped, first):
    posted = {}
    for number in (1, 2):
        assert process(number, posted, bad, skipped)[1] == []
    _, (record,) = process(0, posted, bad, skipped)
    assert (record["count"], record["missing"], record["first"]) == (6, [], first)


def test_the_replicas_of_a_process_that_did_not_answer_are_missing():
    posted = {}
    process(2, posted)
    ranks, found = process(0, posted)
    assert found == []
    (record,) = ranks.end(wait=False)
    assert (record["count"], record["missing"]) == (6, [2, 3])
