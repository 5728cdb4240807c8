"""Several optimizers whose updates or moments are rounded: each has its own count of updates and its own moments."""

import json

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import probe_run, session

pytestmark = pytest.mark.needs("several_optimizers")

VALUES = (1.0,) * 8
LR, MOMENTUM = 2.0**-9, 0.5
POLICIES = [
    pytest.param("float32", {"state_dtype": "bfloat16"}, marks=pytest.mark.needs("state_dtype"), id="moments"),
    pytest.param("bfloat16", {"update": "stochastic"}, marks=pytest.mark.needs("weight_updates"), id="stochastic"),
    pytest.param("bfloat16", {"update": "kahan"}, marks=pytest.mark.needs("weight_updates"), id="kahan"),
]
TURNS = (0, 0, 1, 0, 1, 0, 0, 1)
"""The optimizer of each step."""


class Two:
    """Two models under one session, with an optimizer each."""

    def __init__(self, harness, base, changes):
        policy = ua.Policy.parse(str(harness.pure_policies.get(base, base))).replace(update_seed=0, **changes)
        self.harness, self.amp = harness, session(harness, policy=policy, loss_scale="none")
        with self.amp.scope():
            models = [harness.probe(VALUES) for _ in range(2)]
            with harness.left_to_prepare():
                optimizers = [harness.sgd([model], LR, MOMENTUM) for model in models]
        *self.models, one, two = self.amp.prepare(*models, *optimizers)
        self.optimizers = one, two

    def step(self, turn, number):
        gradients = np.random.default_rng(number).integers(8, 65, len(VALUES)).astype(np.float32) / 64
        x, model = self.amp.to_native(gradients), self.models[turn]
        self.amp.backward(lambda: model(x), self.optimizers[turn])
        self.amp.step(self.optimizers[turn])

    def weights(self):
        """The true ones, and those that the models compute with."""
        true = [self.amp.master_weights(model) for model in self.models]
        return [
            [{name: value.tolist() for name, value in each.items()} for each in of]
            for of in (true, map(self.harness.parameters, self.models))
        ]


@pytest.mark.parametrize(("base", "changes"), POLICIES)
@pytest.mark.parametrize("at", [3, 6])
def test_each_optimizer_goes_on_from_its_own_count(harness, base, changes, at):
    """They have had different numbers of steps when the state is saved."""
    straight, first, second = (Two(harness, base, changes) for _ in range(3))
    for number, turn in enumerate(TURNS):
        straight.step(turn, number)
        if number == at:
            for model, other in zip(first.models, second.models, strict=True):
                second.amp.load_master_weights(other, first.amp.master_weights(model))
            saved = json.loads(json.dumps(first.amp.state_dict(moments=True)))
            second.amp.load_state_dict(saved)
            assert second.amp.state_dict(moments=True) == saved, "it is there to be saved again"
        (first if number < at else second).step(turn, number)
    assert second.weights() == straight.weights()
    counts = [TURNS.count(turn) for turn in range(2)]
    assert second.amp.backend.optimizer_states.steps() == counts


@pytest.mark.parametrize(("base", "changes"), POLICIES)
def test_each_parameter_has_its_own_learning_rate(harness, form, base, changes):
    """Numbers that bfloat16 holds, so that nothing is rounded."""
    rates = (0.5, 0.25, 0.125)

    def make(model):
        with harness.left_to_prepare():
            return harness.grouped_sgd(model, rates)

    policy = ua.Policy.parse(str(harness.pure_policies.get(base, base))).replace(**changes)
    run = probe_run(harness, form, values=(8.0,) * 3, policy=policy, make=make, loss_scale="none")
    for count in (1, 2):
        run.feed(1.0, 2.0, 4.0)
        assert run.weights() == [8.0 - count * 0.5] * 3


@pytest.mark.parametrize(("base", "changes"), POLICIES)
def test_a_layer_that_is_frozen_at_first(harness, base, changes):
    """It does not change while it is frozen; from the step in which it is thawed, it trains with new moments."""
    found = []
    for own_base, own_changes in ((base, changes), ("float32", {})):
        policy = ua.Policy.parse(str(harness.pure_policies.get(own_base, own_base)))
        policy = policy.replace(output_dtype="float32", **own_changes)
        amp = session(harness, policy=policy, loss_scale="none")
        pairs = [(np.eye(4, dtype=np.float32), np.zeros(4, np.float32)) for _ in range(2)]
        with amp.scope(), harness.left_to_prepare():
            model = harness.mlp(pairs)
            optimizer = harness.adam([model], 2.0**-4)
        model, optimizer = amp.prepare(model, optimizer)
        start, seen = amp.master_weights(model), []
        x, y = amp.to_native(np.float32([[1.0, 2.0, 0.5, 1.0]])), amp.to_native(np.full((1, 4), 4.0, np.float32))
        for trains in (False, False, True, True, True):
            harness.set_trainable(model, "layer0", trains)
            amp.backward(lambda: harness.mean_square(model(x), y), optimizer)  # noqa: B023
            assert amp.step(optimizer).applied
            seen.append({name: value - start[name] for name, value in amp.master_weights(model).items()})
        found.append(seen)
    for own, exact in zip(*found, strict=True):
        for (name, change), (_, expected) in zip(sorted(own.items()), sorted(exact.items()), strict=True):
            assert bool(change.any()) == bool(expected.any()), name
            np.testing.assert_allclose(change, expected, atol=2.0**-6, rtol=0.05, err_msg=name)


def single(harness, form, base, changes, kind="sgd", **options):
    """A run of one optimizer, under a policy or a schedule of two with the same changes."""
    policy = ua.Policy.parse(str(harness.pure_policies.get(base, base))).replace(**changes)

    def make(model):
        with harness.left_to_prepare():
            return harness.adam([model], LR) if kind == "adam" else harness.sgd([model], LR, MOMENTUM)

    return probe_run(
        harness, form, **{"values": VALUES, "policy": policy, "make": make, "loss_scale": "none"} | options
    )


def gradients_of(number):
    return (np.random.default_rng(number).integers(8, 65, len(VALUES)) / 64).tolist()


def all_of(run):
    moments = [{name: value.tolist() for name, value in of.items()} for of in run.amp.backend.optimizer_states.read()]
    true = [value.tolist() for value in run.amp.master_weights(run.model).values()]
    return run.weights(), true, moments, run.amp.backend.optimizer_states.steps()


@pytest.mark.needs("accumulation")
@pytest.mark.parametrize(("base", "changes"), POLICIES)
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_a_window_is_one_update(harness, form, base, changes, kind):
    """Of the mean of its micro-batches: rounded once, under the key of its step."""
    whole = single(harness, form, base, changes, kind)
    halves = single(harness, form, base, changes, kind, accumulate_steps=2)
    for number in range(4):
        gradients = np.array(gradients_of(number))
        whole.feed(*gradients)
        halves.feed(*gradients / 2)
        halves.feed(*gradients * 1.5)
    assert all_of(halves) == all_of(whole)


@pytest.mark.needs("policy_schedule", "state_dtype")
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_moments_go_on_over_a_switch_of_the_policy(harness, form, kind):
    """The probe computes in float32 under each."""
    changes = {"state_dtype": "bfloat16", "update_seed": 5}
    first, second = (ua.Policy.parse(name).replace(**changes) for name in ("float32", "mixed_bfloat16"))
    options = {"policy": None, "schedule": {0: first, 2: second, 4: first}}
    try:
        switched = single(harness, form, "float32", changes, kind, **options)
    except (ua.PolicyError, ua.PolicyNotSupportedError) as refusal:
        pytest.skip(f"refused: {refusal}")
    plain = single(harness, form, "float32", changes, kind)
    for number in range(6):
        for run in (switched, plain):
            run.feed(*gradients_of(number))
        assert all_of(switched) == all_of(plain)


@pytest.mark.parametrize(("base", "changes"), POLICIES)
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_another_session_goes_on_with_the_optimizer(harness, base, changes, kind):
    """From the moments, and from the weights as the model has them; or it refuses an optimizer that has been used."""
    run = single(harness, "eager", base, changes, kind)
    for number in range(3):
        run.feed(*gradients_of(number))
    kept, model, optimizer = run.weights(), run.model, run.optimizer
    policy = run.amp.policy
    run.amp.close()
    amp = session(harness, policy=policy, loss_scale="none")
    try:
        model, optimizer = amp.prepare(model, optimizer)
    except ua.PrepareError:
        return
    x = amp.to_native(np.zeros(len(VALUES), np.float32))  # what moves the weights is the moment
    amp.backward(lambda: model(x), optimizer)
    assert amp.step(optimizer).applied
    moved = np.array(kept) - [float(value[0]) for value in amp.master_weights(model).values()]
    assert (moved >= 0).all()
    assert moved.any()
