"""``amp.prefetch`` on every backend: the same batches in order, errors in their place, a clean end."""

import threading
from typing import NamedTuple

import numpy as np
import pytest

import unifiedamp as ua

THREAD = "unifiedamp-prefetch"


@pytest.fixture
def amp(harness):
    made = ua.Amp(harness.backend, "float32")
    yield made
    made.close()
    assert THREAD not in [thread.name for thread in threading.enumerate()]


def batches(count):
    return [(np.full((2, 3), i, np.float32), np.array([i, i + 1], np.int32)) for i in range(count)]


def plain(amp, made):
    return [(amp.to_numpy(x).tolist(), amp.to_numpy(y).tolist()) for x, y in made]


@pytest.mark.parametrize("size", [1, 2, 7])
def test_the_same_batches_in_order(amp, size):
    expected = [(x.tolist(), y.tolist()) for x, y in batches(5)]
    assert plain(amp, amp.prefetch(batches(5), size)) == expected
    assert plain(amp, amp.prefetch(iter(batches(5)), size)) == expected


def test_each_loop_begins_anew(amp):
    ahead = amp.prefetch(batches(3))
    assert plain(amp, ahead) == plain(amp, ahead)
    assert len(ahead) == 3


def test_batches_are_native_and_what_is_no_array_is_left(harness, amp):
    class Batch(NamedTuple):
        x: object
        name: str

    x = np.ones((2, 2), np.float32)
    native = type(amp.to_native(x))
    (made,) = amp.prefetch([{"a": [x, 3, None], "b": Batch(x, "n")}])
    assert isinstance(made["a"][0], native)
    assert made["a"][1:] == [3, None]
    assert isinstance(made["b"].x, native)
    assert made["b"].name == "n"
    assert harness.dtype_of(made["b"].x) == "float32"


class Column:
    """A column of a table: an array to numpy, without DLPack."""

    def __init__(self, values):
        self.values, self.dtype = values, values.dtype

    def __array__(self, dtype=None, copy=None):
        return self.values

    def __len__(self):
        return len(self.values)


def test_a_column_of_a_table_is_an_array(harness, amp):
    native = type(amp.to_native(np.ones(2, np.float32)))
    (made,) = amp.prefetch([Column(np.float32([1, 2]))])
    assert isinstance(made, native)
    assert amp.to_numpy(made).tolist() == [1.0, 2.0]


def test_batches_of_another_framework(harness, peer, amp):
    theirs, x = ua.Amp(peer, "float32"), np.arange(6, dtype=np.float32).reshape(2, 3)
    given = theirs.to_native(x)
    (made,) = amp.prefetch([(given, 1)])
    if peer == "toy":  # its tensors are no arrays to anybody else
        assert made[0] is given
        return
    assert amp.to_numpy(made[0]).tolist() == x.tolist()
    assert type(made[0]) is type(amp.to_native(x))


def test_native_batches_pass(amp):
    x = amp.to_native(np.arange(4, dtype=np.float32))
    (made,) = amp.prefetch([x])
    assert amp.to_numpy(made).tolist() == [0, 1, 2, 3]


def test_an_error_comes_after_the_batches_before_it(amp):
    def source():
        yield from batches(3)
        raise KeyError("the fourth")

    seen = []
    with pytest.raises(KeyError, match="the fourth"):
        for x, _ in amp.prefetch(source(), 2):
            seen.append(float(amp.to_numpy(x)[0, 0]))
    assert seen == [0.0, 1.0, 2.0]


def test_a_loop_that_stops_early_ends_the_source():
    """On the toy backend, whose prefetching is core's own; no other thread may hold what the source holds."""
    amp, closed, taken = ua.Amp("toy", "float32"), threading.Event(), []

    def source():
        try:
            for i in range(1000):
                taken.append(i)
                yield np.full(2, i, np.float32)
        finally:
            closed.set()

    for _ in amp.prefetch(source(), 3):
        break
    assert closed.wait(10)
    assert len(taken) <= 1 + 3 + 1
    assert THREAD not in [thread.name for thread in threading.enumerate()]


def test_it_works_ahead_and_no_further_than_asked(amp):
    room, taken = threading.Semaphore(0), []

    def source():
        for i in range(10):
            taken.append(i)
            room.release()
            yield np.full(2, i, np.float32)

    ahead = iter(amp.prefetch(source(), 2))
    next(ahead)
    for _ in range(3):  # the one in use, and two ahead
        assert room.acquire(timeout=10)
    assert len(taken) in (3, 4)
    ahead.close()


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_a_size_that_makes_no_sense(amp, size):
    with pytest.raises(ua.ConfigError, match="size must be a whole number"):
        amp.prefetch(batches(2), size)


def test_what_cannot_be_iterated_over(amp):
    with pytest.raises(ua.WrongObjectError, match="iterable of batches"):
        amp.prefetch(3)


def test_training_on_it(harness, amp):
    model = harness.probe([1.0, 1.0, 1.0])
    model, optimizer = amp.prepare(model, harness.sgd([model], 0.5))
    for x in amp.prefetch([np.array(g, np.float32) for g in ([1, 0, 0], [0, 1, 0], [0, 0, 1])]):
        amp.backward(lambda x=x: model(x), optimizer)
        amp.step(optimizer)
    assert [float(value[0]) for value in harness.parameters(model).values()] == [0.5, 0.5, 0.5]
