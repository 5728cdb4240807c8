"""How far a command is that tries one thing after another: what it shows, and how much is left."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from unifiedamp import UnsupportedError
from unifiedamp.workloads.tries import Tries
from unifiedamp.workloads.tune.prober import Prober, TuneGoal
from unifiedamp.workloads.workers import WorkerError

LAYERS = ["a", "b", "c", "d"]


class Stand:
    """Trains in no time; ``mixed_float16`` only with layer c in float32, and ``broken`` policies not at all."""

    def __init__(self, broken=()):
        self.broken = broken

    @contextmanager
    def open(self):
        yield self

    def probe(self, policy, scale, steps, clean):
        if policy in self.broken:
            raise WorkerError("no memory", "memory")
        bad = policy.startswith("mixed_float16") and "c:float32" not in policy
        return {"losses": [2.0 if bad else 1.0] * steps, "skipped": [0] * steps, "stopped": "", "layers": LAYERS,
                "scale": 1024.0}  # fmt: skip

    def count(self, steps):
        raise UnsupportedError("no forecast here")

    def rates(self, runs, rounds, lost):
        return {index: [1.0] * rounds for index in range(len(runs))}


def shown(policies, **stand):
    """Return what a tuning shows of each try, and which policies it timed."""
    seen = []
    prober = Prober(TuneGoal("toy", "off", 10, 0.02, 3), Stand(**stand), Tries(lambda *each: seen.append(each)))
    prober.expect(["float32", *policies])
    baseline = prober.find("float32", None)
    findings = [baseline, *(prober.find(policy, baseline.loss) for policy in policies)]
    timed = [one for one in findings if one.usable]
    prober.time(timed)
    return seen, timed


@pytest.mark.parametrize(
    "policies",
    [(), ("mixed_bfloat16",), ("mixed_float16", "mixed_bfloat16"), ("mixed_bfloat16", "mixed_float16")],
    ids=" ".join,
)
@pytest.mark.parametrize("broken", [(), ("mixed_bfloat16",)], ids=["all train", "one fails"])
def test_what_is_left_is_known_once_all_was_tried(policies, broken):
    seen, timed = shown(policies, broken=broken)
    assert [done for _, done, _ in seen] == list(range(len(seen)))
    assert all(known > done for _, done, known in seen)
    what, done, known = seen[-1]
    assert what.startswith("timing")
    assert known - done == len(timed), "a turn for each that is timed"


def test_nothing_unexpected_happens_where_each_policy_trains_at_once():
    seen, _ = shown(("mixed_bfloat16",))
    assert {known for _, _, known in seen} == {4}, "a probe and a turn for each of two"


def test_parts_of_a_try_are_shown_and_not_counted():
    seen = []
    tries = Tries(lambda *each: seen.append(each))
    tries.expect(2)
    tries.begin("timing")
    tries.within("round 1")
    tries.within("round 2")
    tries.begin("last")
    assert seen == [("timing", 0, 2), ("round 1", 0, 2), ("round 2", 0, 2), ("last", 1, 2)]


def test_a_search_adds_the_tries_that_it_takes():
    seen, _ = shown(("mixed_float16",))
    assert seen[0][2] == 1 + 1 + 3 + 1
    assert seen[-1][2] > seen[0][2]
