"""``amp.prefetch``: the batches of the loop, in order, each once, and its errors in their place."""

import threading
import time
from typing import NamedTuple

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import session


def numbers(amp, batches):
    return [int(np.ravel(amp.to_numpy(batch))[0]) for batch in batches]


def batches(count):
    return [np.full((2, 3), index, np.float32) for index in range(count)]


@pytest.mark.parametrize("size", [1, 2, 5, 50])
def test_all_of_them_in_order(harness, size):
    """Also of generators, and anew in each loop over something that begins anew."""
    amp = session(harness)
    assert numbers(amp, amp.prefetch(batches(20), size)) == list(range(20))
    assert numbers(amp, amp.prefetch(iter(batches(20)), size)) == list(range(20))
    ahead = amp.prefetch(batches(7), size)
    assert numbers(amp, ahead) == numbers(amp, ahead) == list(range(7))
    assert numbers(amp, amp.prefetch([], size)) == []


@pytest.mark.parametrize("size", [1, 3, 50])
def test_an_error_comes_in_its_place(harness, size):
    def source():
        yield from batches(6)
        raise KeyError("the seventh")

    amp, seen = session(harness), []
    with pytest.raises(KeyError, match="the seventh"):
        for batch in amp.prefetch(source(), size):
            seen.append(numbers(amp, [batch])[0])
    assert seen == list(range(6))


def test_a_loop_that_is_left_early_leaves_the_rest(harness):
    amp, taken = session(harness), []

    def source():
        for index, batch in enumerate(batches(100)):
            taken.append(index)
            yield batch

    threads = threading.active_count()
    for batch in amp.prefetch(source(), 2):
        if numbers(amp, [batch]) == [3]:
            break
    assert 4 <= len(taken) <= 10
    assert threading.active_count() == threads
    assert numbers(amp, amp.prefetch(batches(3), 2)) == [0, 1, 2]


@pytest.mark.parametrize("size", [1, 3])
def test_no_more_are_made_ahead_than_asked(harness, size):
    """They take memory, and on a device that of training."""
    amp, taken = session(harness), []

    def source():
        for index, batch in enumerate(batches(20)):
            taken.append(index)
            yield batch

    ahead = iter(amp.prefetch(source(), size))
    for count in range(1, 4):
        next(ahead)
        time.sleep(0.02)
        assert count <= len(taken) <= count + size
    ahead.close()


class Sample(NamedTuple):
    """What some loaders yield."""

    x: object
    name: str


def test_named_tuples_are_kept(harness):
    amp = session(harness)
    (made,) = amp.prefetch([Sample(batches(1)[0], "n")], 1)
    assert (type(made), made.name) == (Sample, "n")
    assert numbers(amp, [made.x]) == [0]


def test_structures_are_kept(harness):
    amp = session(harness)
    made = list(amp.prefetch([{"x": [x, 3], "name": "n", "y": (x + 1, None)} for x in batches(3)], 2))
    assert [each["name"] for each in made] == ["n"] * 3
    assert [each["x"][1] for each in made] == [3] * 3
    assert numbers(amp, [each["x"][0] for each in made]) == [0, 1, 2]
    assert numbers(amp, [each["y"][0] for each in made]) == [1, 2, 3]
    assert all(isinstance(each["y"], tuple) and each["y"][1] is None for each in made)


@pytest.mark.parametrize("size", [0, -1, 1.5, True, None])
def test_a_size_that_is_none(harness, size):
    with pytest.raises(ua.ConfigError, match="size must be a whole number"):
        session(harness).prefetch([], size)
