"""``amp.ema`` without a framework: what swapping in leaves when it is interrupted, and arrays as text."""

import json

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.backend import SessionSpec, ema_weight
from unifiedamp.checkpoint.averages import from_text, to_text
from unifiedamp.checkpoint.session_arrays import join_arrays, split_arrays
from unifiedamp.training.ema import Averages
from unifiedamp.training.interruption import Interruptions
from unifiedamp.training.step_order import StepOrder


class Weight:
    """A model of one weight, its average, and an error that comes at a moment."""

    def __init__(self):
        self.weight, self.average, self.kept = 1.0, 5.0, None
        self.fails = {}

    def fail(self, moment):
        if self.fails.get(moment, 0):
            self.fails[moment] -= 1
            raise KeyboardInterrupt

    def swap_in(self):
        self.fail("before swapping in")
        self.kept = self.weight
        self.weight = self.average
        self.fail("after swapping in")

    def swap_out(self):
        self.fail("before restoring")
        if self.kept is not None:
            self.weight, self.kept = self.kept, None
        self.fail("after restoring")

    def read(self):
        return {"w": np.float32([self.average])}

    def updates(self):
        return [1]

    def stop(self):
        pass


class StandInBackend:
    """Has averages alone."""

    name = "stand-in"

    def __init__(self):
        self.spec = SessionSpec(ua.Policy(), ua.NoLossScale())
        self.training = self.averaging = self
        self.weights = self.compiler = None

    def require(self, feature, call):
        assert feature == "ema"

    def is_model(self, obj):
        return isinstance(obj, Weight)

    def start(self, model, decay, warmup):
        return model


@pytest.fixture
def session():
    backend = StandInBackend()
    interruptions = Interruptions(backend, StepOrder(), lambda: None)
    model = Weight()
    return interruptions, model, Averages(backend, interruptions).create(model, 0.9, False)


MOMENTS = ["before swapping in", "after swapping in", "before restoring", "after restoring"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupted_swap_is_finished_by_the_next_step(session, moment):
    interruptions, model, ema = session
    model.fails[moment] = 1
    with pytest.raises(KeyboardInterrupt), ema.swapped():
        assert model.weight == 5.0
    if interruptions.unsettled:
        interruptions.settle()
    assert (model.weight, interruptions.unsettled) == (1.0, False)
    with ema.swapped():
        assert model.weight == 5.0
        with pytest.raises(ua.StepOrderError, match="swapped in"):
            interruptions.settle()
    assert model.weight == 1.0


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupted_swap_is_finished_by_the_next_one(session, moment):
    interruptions, model, ema = session
    model.fails[moment] = 1
    with pytest.raises(KeyboardInterrupt), ema.swapped():
        pass
    with ema.swapped():
        assert model.weight == 5.0
    assert (model.weight, interruptions.unsettled) == (1.0, False)


@pytest.mark.parametrize(("n", "expected"), [(1, 9 / 11), (2, 9 / 12), (90, 0.09), (10**9, 0.01)])
def test_the_warm_up(n, expected):
    """1 - min(0.99, (1 + n) / (10 + n))."""
    assert ema_weight(0.99, True, n) == pytest.approx(expected, rel=1e-12)
    assert ema_weight(0.99, False, n) == pytest.approx(0.01)


ARRAYS = [
    np.float32([[1.5, -0.0], [np.inf, np.nan]]),
    np.float32(3.0),
    np.zeros((0, 3), np.float32),
    np.complex64([1 + 2j, -0.5j]),
    np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::-1],
]


@pytest.mark.parametrize("array", ARRAYS, ids=["special", "scalar", "empty", "complex", "strided"])
def test_an_array_goes_through_json_bit_for_bit(array):
    back = from_text(json.loads(json.dumps(to_text(array))), "here")
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert back.tobytes() == np.ascontiguousarray(array).tobytes()


def test_an_array_of_either_byte_order_is_saved_alike():
    values = np.float32([1.5, -2.0, np.inf])
    assert to_text(values.astype(">f4"))["base64"] == to_text(values.astype("<f4"))["base64"]
    assert from_text(to_text(values.astype(">f4")), "here").tolist() == values.tolist()


def test_a_state_is_split_and_joined():
    state = {"schema": "unifiedamp", "ema": [{"decay": 0.9, "weights": {"w": to_text(ARRAYS[0])}}]}
    split, arrays = split_arrays(state)
    assert list(arrays) == ["amp.ema.0.w"]
    assert "base64" not in json.dumps(split)
    assert join_arrays(split, arrays) == state
    assert arrays == {}
    assert split_arrays({"schema": "unifiedamp"}) == ({"schema": "unifiedamp"}, {})
