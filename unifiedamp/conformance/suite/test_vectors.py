"""Golden vectors: every rule as data, followed by every backend in every form, also across a save and a load."""

import importlib.resources
import json

import numpy as np
import pytest

from unifiedamp.conformance.driver import compiled, session
from unifiedamp.loss_scale import parse_loss_scale

VECTORS = {
    path.name.removesuffix(".json"): json.loads(path.read_text(encoding="utf-8"))
    for path in importlib.resources.files("unifiedamp.conformance").joinpath("vectors").iterdir()
    if path.name.endswith(".json")
}


class Follower:
    """A session with one probe model and one optimizer per column of the vector."""

    def __init__(self, harness, form, vector, weights):
        setting = parse_loss_scale(vector["loss_scale"])
        self.harness = harness
        self.amp = session(harness, form, loss_scale=setting, accumulate_steps=vector["accumulate_steps"])
        with self.amp.scope():
            models = [harness.probe([weight]) for weight in weights]
            optimizers = [harness.sgd([model], vector["learning_rate"]) for model in models]
        prepared = self.amp.prepare(*models, *optimizers)
        self.models, self.optimizers = prepared[: len(models)], prepared[len(models) :]
        self.step = compiled(self.amp, form, self._step)

    def _step(self, *inputs):
        for model, optimizer, x in zip(self.models, self.optimizers, inputs, strict=True):
            self.amp.backward(lambda model=model, x=x: model(x), optimizer)
            self.amp.step(optimizer)

    def feed(self, gradients):
        self.step(*(self.amp.to_native(np.array([float(value)], np.float32)) for value in gradients))

    def weights(self):
        return [float(self.harness.parameters(model).popitem()[1][0]) for model in self.models]


def check(follower, expected, index):
    state = follower.amp.state_dict()["state"]
    assert state["scale"] == expected["scale_after"][index]
    for key in ("good_steps", "bad_steps", "applied_steps", "skipped_steps"):
        assert state[key] == expected[key][index], key
    assert follower.weights() == pytest.approx(expected["weights"][index], rel=1e-6)


@pytest.mark.needs("loss_scaling", "accumulation", "several_optimizers")
@pytest.mark.parametrize("name", sorted(VECTORS))
def test_golden_vector(harness, form, name):
    vector = VECTORS[name]
    follower = Follower(harness, form, vector, [1.0] * len(vector["gradients"][0]))
    for index, gradients in enumerate(vector["gradients"]):
        assert follower.amp.loss_scale == vector["expected"]["scale_used"][index]
        follower.feed(gradients)
        check(follower, vector["expected"], index)


@pytest.mark.needs("loss_scaling", "accumulation", "several_optimizers")
@pytest.mark.parametrize("name", sorted(VECTORS))
def test_golden_vector_saved_and_loaded_between_windows(harness, name):
    """At every place where a checkpoint can be taken, a new session goes on as the old one would have."""
    vector = VECTORS[name]
    window = vector["accumulate_steps"]
    for stop in range(window, len(vector["gradients"]), window):
        first = Follower(harness, "eager", vector, [1.0] * len(vector["gradients"][0]))
        for gradients in vector["gradients"][:stop]:
            first.feed(gradients)
        second = Follower(harness, "eager", vector, first.weights())
        second.amp.load_state_dict(json.loads(json.dumps(first.amp.state_dict())))
        for index in range(stop, len(vector["gradients"])):
            second.feed(vector["gradients"][index])
            check(second, vector["expected"], index)
