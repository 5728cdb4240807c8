"""A state goes on where the process made others before: Keras numbers names of all layers and variables together."""

import contextlib

import numpy as np
import pytest

import unifiedamp as ua

tf = pytest.importorskip("tensorflow")
from models import keras  # noqa: E402

X = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)
STATES = {
    "average": "float32",
    "compensation": "bfloat16;update=kahan",
    "stochastic": "bfloat16;update=stochastic",
    "moments": "mixed_bfloat16;state_dtype=bfloat16",
    "rounded moments": "mixed_bfloat16;state_dtype=float8",
    "amax histories": "mixed_float8;recipe=delayed;emulate=true",
}


class Block(keras.Model):
    """Two layers, one of which has a name."""

    def __init__(self):
        super().__init__()
        self.first, self.last = keras.layers.Dense(16, activation="relu"), keras.layers.Dense(16, name="last")

    def call(self, x):
        return self.last(self.first(x))


class Blocks(keras.Model):
    """Layers of one name twice, and blocks without names."""

    def __init__(self):
        super().__init__()
        self.blocks = [Block(), Block()]
        self.heads = [keras.layers.Dense(16, name="head"), keras.layers.Dense(16, name="head")]

    def call(self, x):
        for layer in (*self.blocks, *self.heads):
            x = layer(x)
        return x


def sequential():
    return keras.Sequential([keras.Input((16,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(16)])


def functional():
    x = keras.Input((16,))
    return keras.Model(x, sequential()(keras.layers.Dense(16)(sequential()(x))))


def subclassed():
    model = Blocks()
    model(tf.zeros((1, 16)))
    return model


def recurrent():
    model = keras.Sequential([keras.Input((4, 4))])
    for _ in range(2):
        model.add(keras.layers.Bidirectional(keras.layers.LSTM(8, return_sequences=True)))
        model.add(keras.layers.RNN([keras.layers.GRUCell(16), keras.layers.LSTMCell(16)], return_sequences=True))
        model.add(keras.layers.TimeDistributed(keras.layers.Dense(4)))
    return model


class Scaled(keras.layers.Layer):
    """Variables without names."""

    def build(self, shape):
        self.factor, self.shift = self.add_weight(shape=shape[-1:]), self.add_weight(shape=shape[-1:])
        super().build(shape)

    def call(self, x):
        return x * tf.cast(self.factor, x.dtype) + tf.cast(self.shift, x.dtype)


def unnamed():
    return keras.Sequential([keras.Input((16,)), Scaled(), keras.layers.Dense(16), Scaled()])


MODELS = [sequential, functional, subclassed]
CASES = [(state, subclassed) for state in STATES]
CASES += [(state, make) for state in ("average", "amax histories") for make in (sequential, functional)]


class Run:
    """A session, a model and its optimizer, and an average of the weights."""

    def __init__(self, make, policy):
        self.amp = ua.Amp("tensorflow", policy, device="cpu")
        with self.amp.scope():
            self.model, self.native = make(), keras.optimizers.Adam(0.01)
        rng = np.random.default_rng(1)
        self.model.set_weights([rng.normal(0, 0.3, each.shape) for each in self.model.get_weights()])
        self.model, self.optimizer = self.amp.prepare(self.model, self.native)
        self.ema = self.amp.ema(self.model, decay=0.5)

    def train(self, steps=3):
        for _ in range(steps):
            self.amp.backward(lambda: tf.reduce_mean(tf.square(tf.cast(self.model(X), tf.float32))), self.optimizer)
            self.amp.step(self.optimizer)

    def saved(self):
        return [each.numpy() for each in (*self.model.variables, *self.native.variables)], self.amp.state_dict()

    def load(self, saved):
        for variable, value in zip((*self.model.variables, *self.native.variables), saved[0], strict=True):
            variable.assign(value)
        self.amp.load_state_dict(saved[1])


@contextlib.contextmanager
def run(make, policy):
    trained = Run(make, policy)
    with contextlib.closing(trained.amp):
        yield trained


@pytest.fixture
def others():
    """Make layers, so that Keras's numbers go on."""
    return lambda: [sequential(), keras.layers.Dense(1), Blocks()]


@pytest.mark.parametrize(("state", "make"), CASES)
def test_a_model_made_again_goes_on(state, make, others):
    with run(make, STATES[state]) as one:
        one.train()
        before = one.saved()
        one.train()
        expected = one.saved()
    others()
    with run(make, STATES[state]) as two:
        two.load(before)
        two.train()
        found = two.saved()
    assert all(np.array_equal(a, b) for a, b in zip(expected[0], found[0], strict=True))
    assert found[1] == expected[1]


@pytest.mark.parametrize("policy", ["bfloat16;update=stochastic", "bfloat16;update=kahan;state_dtype=bfloat16"])
def test_the_same_seed_draws_the_same_numbers(policy, others):
    found = []
    for _ in range(2):
        with run(subclassed, policy) as trained:
            trained.train()
            found.append(trained.saved()[0])
        others()
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("make", [*MODELS, recurrent, unnamed])
def test_weights_are_read_and_set_by_the_same_names(make, others):
    with run(make, "float32") as one:
        weights = one.amp.master_weights(one.model)
    others(), recurrent()
    with run(make, "float32") as two:
        two.amp.load_master_weights(two.model, weights)
        again = two.amp.master_weights(two.model)
    assert list(again) == list(weights)
    assert all(np.array_equal(weights[name], again[name]) for name in weights)


def test_a_recording_names_weights_as_their_gradients(others):
    """Or `unifiedamp diff` would compare one weight with another."""
    others(), subclassed()
    records = []
    with run(subclassed, "float32") as trained, trained.amp.record(records.append, compare=True):
        trained.train(1)
    compared = records[1]["compare"]
    assert len(compared["gradients"]) == 12
    assert compared["gradients"].keys() == compared["before"].keys()
    layers = {row["layer"] for row in compared["layers"]}
    assert {name.rpartition(".")[0] for name in compared["before"] if not name.startswith("blocks")} <= layers


def test_names_that_the_user_gave_stay():
    keras.layers.Dense(1)
    with run(lambda: named("fc_7", "dense", None, "fc_8"), "float32") as trained:
        assert [name for name in trained.amp.master_weights(trained.model) if name.endswith("kernel")] == [
            "fc_7.kernel", "dense.kernel", "dense_1.kernel", "fc_8.kernel",
        ]  # fmt: skip


def named(*names):
    return keras.Sequential([keras.Input((16,)), *(keras.layers.Dense(16, name=name) for name in names)])


def test_layers_of_other_names_are_still_refused():
    """Only Keras's own numbers may differ."""
    with run(lambda: named("fc_1", "fc_2"), "float32") as one:
        state = one.amp.state_dict()
    with run(lambda: named("fc_2", "fc_3"), "float32") as two, pytest.raises(ua.CheckpointError, match="fc_1"):
        two.amp.load_state_dict(state)


def test_models_of_one_call_are_told_apart(others):
    """Of two models without names whose layers have equal ones, with an optimizer each."""

    def losses(amp, models, optimizers):
        for model, optimizer in zip(models, optimizers, strict=True):
            amp.backward(lambda model=model: tf.reduce_mean(tf.square(model(X))), optimizer)
            amp.step(optimizer)

    found = []
    for _ in range(2):
        with contextlib.closing(ua.Amp("tensorflow", "bfloat16;update=kahan", device="cpu")) as amp:
            with amp.scope():
                models = [named("head"), named("head")]
                optimizers = [keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.01)]
            prepared = amp.prepare(*models, *optimizers)
            losses(amp, prepared[:2], prepared[2:])
            found.append(amp.state_dict()["update"]["compensation"].keys())
        others()
    assert found[0] == found[1]
    assert len(found[0]) == 4
