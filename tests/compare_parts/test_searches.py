"""What ``compare`` and ``tune`` search for: the largest batch, the smallest subset, the largest clean scale."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from unifiedamp.workloads.compare.search import largest
from unifiedamp.workloads.tune.search import largest_clean, minimize_subset


@given(limit=st.integers(0, 5000), start=st.integers(1, 200), cap=st.integers(1, 4000), grain=st.integers(1, 64))
def test_the_largest_that_fits(limit, start, cap, grain):
    tried = []
    found = largest(lambda size: tried.append(size) or size <= limit, start, cap, grain)
    assert all(1 <= size <= cap for size in tried)
    assert len(set(tried)) == len(tried), "nothing is tried twice"
    assert found <= limit
    if limit >= cap:
        assert found == cap
    elif limit == 0:
        assert found == 0
    else:
        assert found in tried
        assert limit - found < grain
        assert found >= 1
    assert len(tried) <= 2 * math.log2(max(cap, start)) + 4


@given(needed=st.sets(st.integers(0, 15)), count=st.integers(0, 16))
def test_fewest_finds_what_is_needed(needed, count):
    items = list(range(count))
    found = minimize_subset(items, lambda some: needed <= set(some))
    assert found == (sorted(needed) if needed <= set(items) else None)


@given(st.sets(st.sets(st.integers(0, 7), min_size=1, max_size=3).map(frozenset), min_size=1, max_size=4))
def test_fewest_leaves_nothing_that_could_go(ways):
    """Several selections may do; the one found does, and none of its members can be left out."""

    def good(some):
        return any(way <= set(some) for way in ways)

    found = minimize_subset(list(range(8)), good)
    assert good(found)
    assert not any(good(found[:i] + found[i + 1 :]) for i in range(len(found)))


@given(st.integers(0, 24), st.integers(0, 24))
def test_largest_clean_scale(start, limit):
    tried = []

    def skips(scale):
        tried.append(scale)
        return int(scale > 2.0**limit)

    assert largest_clean(skips, 2.0**start) == 2.0 ** min(start, limit)
    assert tried == sorted(tried, reverse=True)
