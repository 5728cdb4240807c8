"""Trainings under a schedule of policies, and their oracle: runs that are restarted at each switch."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session
from unifiedamp.conformance.emulated import emulation_of

AT = 3
"""The iteration of the switch."""
STEPS = 6
RATE = 0.25


def runs_here(harness, policy):
    """Return a policy as it runs on this machine: itself, or its emulation."""
    try:
        session(harness, policy=policy).close()
    except ua.PolicyNotSupportedError as error:
        pytest.skip(str(error))
    try:
        ua.Amp(harness.backend, policy).close()
    except ua.PolicyNotSupportedError:
        return emulation_of(harness, policy)
    return ua.Policy.parse(policy)


def batches(count=STEPS):
    rng = np.random.default_rng(1)
    return [tuple(rng.normal(size=(2, 8, 16)).astype(np.float32)) for _ in range(count)]


class Training:
    """A model under a session: under a schedule, or under one policy from given weights."""

    def __init__(self, harness, form, policy=None, weights=None, **options):
        backend_options = {harness.backend: dict(harness.forms[form])} if harness.forms[form] else None
        self.harness, self.runs = harness, 0
        self.amp = amp = ua.Amp(harness.backend, policy, backend_options=backend_options, **options)
        rng = np.random.default_rng(0)
        layers = [(rng.normal(size=(a, b)).astype(np.float32), np.zeros(b, np.float32)) for a, b in [(16, 16)] * 2]
        with amp.scope():
            model = harness.mlp(layers)
            optimizer = harness.sgd([model], RATE)
        # Where dynamo traces the step itself, it would trace it anew at each change of the count.
        self.counted = counted = form not in ("eager", "max") and bool(
            amp.capabilities.feature("compile") and amp.backend.compiler.replays_traces
        )
        self.model, self.optimizer = amp.prepare(model, optimizer)
        if weights is not None:
            harness.set_parameters(self.model, weights)

        def step(x, y):
            if counted:
                self.runs += 1
            amp.backward(lambda: harness.mean_square(self.model(x), y), self.optimizer)
            amp.step(self.optimizer)

        self.step = compiled(amp, form, step)

    def feed(self, *pairs):
        """Run a step on each batch; return the policies in force before each."""
        found = []
        for x, y in pairs:
            found.append(self.amp.policy)
            self.step(self.amp.to_native(x), self.amp.to_native(y))
        return found

    def weights(self):
        return {name: value.astype(np.float32) for name, value in self.harness.parameters(self.model).items()}


def two_of(harness, amp):
    """Return two prepared models, and the optimizer of each."""
    weight = [(np.eye(16, dtype=np.float32), np.zeros(16, np.float32))]
    with amp.scope():
        models = [harness.mlp(weight) for _ in range(2)]
        optimizers = [harness.sgd([model], RATE) for model in models]
    prepared = amp.prepare(*models, *optimizers)
    return prepared[:2], prepared[2:]


def assert_same(found, expected):
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def assert_close(found, expected):
    """Equal up to the rounding of a few float32 steps."""
    assert list(found) == list(expected)
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)


def differ(one, other):
    return any((one[name] != other[name]).any() for name in one)


def restarted(harness, form, data, *parts, **options):
    """Return the weights after runs under one policy each: (policy, its iterations), each from the weights before."""
    weights, rest = None, list(data)
    for policy, count in parts:
        run = Training(harness, form, policy, weights, **options)
        run.feed(*rest[:count])
        weights, rest = run.weights(), rest[count:]
    assert not rest
    return weights
