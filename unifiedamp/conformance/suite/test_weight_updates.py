"""Updates of bfloat16 parameters without float32 master weights: what 8 bits would lose arrives, once and reproducibly.

The oracle is Kahan summation and the distribution of stochastic rounding in float64.
"""

import base64
import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import probe_run, session

pytestmark = pytest.mark.needs("weight_updates")

TINY = 2.0**-13
"""A step from 1 that bfloat16 rounds away."""
SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=3)
MANY, FEW = (1.0,) * 16, (1.0,) * 6
"""Parameters of a run: each has its own random numbers, and is traced and compiled for itself."""
HALF = 16 * TINY
"""A step of half the distance to the neighbour: each random number decides as much as it can."""
KINDS = ["stochastic", "kahan"]


def run_of(harness, form, update, seed=0, **options):
    policy = ua.Policy.parse(str(harness.pure_policies["bfloat16"])).replace(update=update, update_seed=seed)
    return probe_run(harness, form, **{"policy": policy, "lr": TINY, "loss_scale": "none"} | options)


def true_weights(run):
    return [float(value[0]) for value in run.amp.master_weights(run.model).values()]


def bfloat16(value):
    """Return the nearest bfloat16, ties to even, of a number in its normal range."""
    step = 2.0 ** (math.frexp(value)[1] - 8) if value else 1.0
    return round(value / step) * step


class Kahan:
    """Kahan summation with a weight and a compensation of 8 significant bits."""

    def __init__(self, weight):
        self.weight, self.rest = weight, 0.0

    def subtract(self, update):
        total = self.weight + self.rest - update
        self.weight = bfloat16(total)
        self.rest = bfloat16(total - self.weight)


def test_kahan_keeps_what_rounding_leaves(harness, form):
    rng = np.random.default_rng(0)
    run, oracle = run_of(harness, form, "kahan", lr=1.0), Kahan(1.0)
    plain = 1.0
    for gradient in rng.integers(-8, 24, 60) * 2.0**-14:
        run.feed(float(gradient))
        oracle.subtract(float(gradient))
        plain -= float(gradient)
        assert (run.weights(), true_weights(run)) == ([oracle.weight], [oracle.weight + oracle.rest])
    assert oracle.weight + oracle.rest == pytest.approx(plain, abs=2.0**-14)
    assert oracle.weight != 1.0


def test_stochastic_rounding_is_right_on_average(harness, form):
    """192 steps of 2**-3 of the distance between neighbours, in 16 parameters: 5 standard deviations of their mean."""
    run = run_of(harness, form, "stochastic", values=MANY, lr=4 * TINY)
    ones = [1.0] * len(MANY)
    run.feed(*ones)
    assert set(run.weights()) <= {1.0, 1.0 - 2.0**-8}, "a neighbour on either side"
    for _ in range(191):
        run.feed(*ones)
    found = run.weights()
    assert np.mean(found) == pytest.approx(1.0 - 768 * TINY, abs=5 * 2.0**-8 * math.sqrt(192 * 2.0**-3 / len(MANY)))
    assert len(set(found)) > 3, "each parameter has its own random numbers"
    assert [bfloat16(each) for each in found] == found


def test_random_numbers_do_not_repeat_within_a_parameter(harness):
    """Equal elements with equal gradients, half the distance to the neighbour: about as many go either way."""
    count = 2**17
    policy = ua.Policy.parse(str(harness.pure_policies["bfloat16"]))
    amp = session(harness, policy=policy.replace(update="stochastic", output_dtype="float32"))
    with amp.scope():
        model = harness.mlp([(np.ones((1, count), np.float32), np.zeros(count, np.float32))])
        optimizer = harness.sgd([model], HALF * count / 2)
    model, optimizer = amp.prepare(model, optimizer)
    x, y = (amp.to_native(np.full((1, size), value, np.float32)) for size, value in ((1, 1.0), (count, 0.0)))
    amp.backward(lambda: harness.mean_square(model(x), y), optimizer)
    amp.step(optimizer)
    found = max(harness.parameters(model).values(), key=lambda value: float(np.abs(value).max())).ravel()
    assert set(found.tolist()) == {1.0, 1.0 - 2.0**-8}
    for size in (2**16, 2**15, 2**12, 2**8):
        one, *others = found.reshape(-1, size)
        for other in others:
            assert 0.25 < np.mean(one == other) < 0.75


def test_stochastic_rounding_follows_the_seed(harness, form):
    def ended(seed, form):
        run = run_of(harness, form, "stochastic", seed, values=FEW, lr=HALF)
        for _ in range(3):
            run.feed(*[1.0] * len(FEW))
        return run.weights()

    assert ended(1, form) == ended(1, "eager")
    assert ended(2, form) != ended(1, form)


@pytest.mark.needs("loss_scaling")
@pytest.mark.parametrize("update", KINDS)
def test_a_skip_changes_no_weight_and_no_random_number(harness, form, update):
    """Neither weights, nor compensations, nor the random numbers of the steps after it."""
    straight, skipping = (run_of(harness, form, update, values=FEW, lr=HALF, loss_scale=SCALE) for _ in range(2))
    for step in range(6):
        straight.feed(*[1.0] * len(FEW))
        skipping.feed(*[1.0] * len(FEW))
        if step in (1, 3):
            before = skipping.weights(), true_weights(skipping)
            skipping.feed(*[1.0] * (len(FEW) - 1), math.inf)
            assert (skipping.weights(), true_weights(skipping)) == before
    assert true_weights(skipping) == true_weights(straight)
    assert skipping.amp.skipped_steps == 2


@pytest.mark.needs("loss_scaling")
def test_gradients_are_rounded_but_the_scale_is_not(harness):
    """Its reciprocal would be 1 in bfloat16."""
    run = run_of(harness, "eager", "kahan", lr=1.0, loss_scale=ua.StaticLossScale(1.0 / (1.0 + 2.0**-8)))
    run.feed(1.5)
    assert true_weights(run) == pytest.approx([-0.5], abs=2.0**-8)


@pytest.mark.parametrize("update", KINDS)
def test_updates_go_on_bit_for_bit_from_a_state(harness, form, update):
    gradients = [1.0, 0.125, 3.0, 0.75, 1.0, 0.5]
    values = (FEW, FEW, (7.0,) * len(FEW))
    straight, first, second = (run_of(harness, form, update, values=each, lr=HALF) for each in values)
    for index, gradient in enumerate(gradients):
        straight.feed(*[gradient] * len(FEW))
        if index == 3:
            masters, state = first.amp.master_weights(first.model), first.amp.state_dict()
            first.feed(*[4.0] * len(FEW))  # what was read does not change with it
            second.amp.load_master_weights(second.model, masters)
            second.amp.load_state_dict(state)
        (first if index < 3 else second).feed(*[gradient] * len(FEW))
    assert true_weights(second) == true_weights(straight)
    assert second.weights() == straight.weights()


@pytest.mark.needs("several_optimizers")
def test_a_state_has_the_compensations_of_all_optimizers(harness):
    policy = ua.Policy.parse(str(harness.pure_policies["bfloat16"])).replace(update="kahan")
    amp = session(harness, policy=policy, loss_scale="none")
    with amp.scope():
        models = [harness.probe([1.0]) for _ in range(2)]
        optimizers = [harness.sgd([model], TINY) for model in models]
    *models, first, second = amp.prepare(*models, *optimizers)
    x = amp.to_native(np.float32([1.0]))
    for _ in range(3):
        for model, optimizer in zip(models, (first, second), strict=True):
            amp.backward(lambda model=model: model(x), optimizer)
            amp.step(optimizer)
    saved = amp.state_dict()["update"]["compensation"].values()
    assert [np.frombuffer(base64.b64decode(each["base64"]), "<f4").tolist() for each in saved] == [[-3 * TINY]] * 2


@pytest.mark.parametrize("saved", ["no updates", "another kind"])
@pytest.mark.parametrize("update", KINDS)
def test_a_state_of_other_updates_leaves_them_as_they_are(harness, update, saved):
    """Such as one that was saved with float32 master weights, or with the other of the two."""
    straight, loading = (run_of(harness, "eager", update, values=FEW, lr=HALF) for _ in range(2))
    for _ in range(2):
        straight.feed(*[1.0] * len(FEW))
        loading.feed(*[1.0] * len(FEW))
        state = loading.amp.state_dict()
        other = {**state.pop("update"), "kind": next(kind for kind in KINDS if kind != update), "compensation": {}}
        loading.amp.load_state_dict({**state, "update": other} if saved == "another kind" else state)
    assert true_weights(loading) == true_weights(straight) != [1.0] * len(FEW)


@pytest.mark.parametrize("update", KINDS)
def test_counts_go_on_from_a_state_of_the_other_kind(harness, form, update):
    """The random numbers of a step follow from its count."""
    run = run_of(harness, form, update, values=FEW, lr=HALF)
    run.feed(*[1.0] * len(FEW))
    state, counts = run.amp.state_dict(), []
    other = next(kind for kind in KINDS if kind != update)
    run.amp.load_state_dict({**state, "update": {**state["update"], "kind": other, "steps": [7], "compensation": {}}})
    for _ in range(2):
        counts += run.amp.state_dict()["update"]["steps"]
        run.feed(*[1.0] * len(FEW))
    assert counts == [7, 8]


def test_moments_are_float32(harness, form):
    """SGD with momentum in float64; a compensation leaves out less than 2**-17 of the weight in each step."""
    lr = 2.0**-6
    run = run_of(harness, form, "kahan", lr=lr, make=lambda model: harness.sgd([model], lr, 0.9))
    weight = moment = 0.0
    for gradient in np.random.default_rng(0).integers(-8, 9, 100) / 8:
        run.feed(float(gradient))
        moment = 0.9 * moment + gradient
        weight += lr * moment
    assert true_weights(run) == pytest.approx([1.0 - weight], abs=1.5e-4)


@pytest.mark.needs("ema")
def test_an_average_follows_the_true_weights(harness, form):
    """Also where it takes their place between steps: what is left out of them comes back with them."""
    run = run_of(harness, form, "kahan")
    ema = run.amp.ema(run.model, 0.5)
    expected, weight = 1.0, 1.0
    for _ in range(5):
        run.feed(1.0)
        weight -= TINY
        expected = 0.5 * expected + 0.5 * weight
        with ema.swapped():
            assert true_weights(run) == pytest.approx([expected], rel=2.0**-16)
        assert true_weights(run) == [weight]
    (average,) = ema.weights().values()
    assert float(average[0]) == pytest.approx(expected, rel=2.0**-22)


def test_an_average_begins_with_the_true_weights(harness):
    run = run_of(harness, "eager", "kahan")
    run.feed(1.0)
    ema = run.amp.ema(run.model, 0.5)
    assert true_weights(run) == [1.0 - TINY] != run.weights()
    for expected in (1.0 - TINY, 1.0 - 1.5 * TINY):
        (average,) = ema.weights().values()
        assert float(average[0]) == expected
        run.feed(1.0)


@pytest.mark.parametrize("update", KINDS)
def test_weight_decay_is_part_of_the_update(harness, form, update):
    """Of numbers that bfloat16 holds."""

    def make(model):
        with harness.left_to_prepare():
            return harness.decaying_sgd(model, 0.5, 1.0)

    run = run_of(harness, form, update, make=make)
    for expected in (0.375, 0.0625):
        run.feed(0.25)
        assert run.weights() == [expected]


def test_a_weight_that_is_set_has_no_compensation(harness):
    """What rounding left out of the last weight is no part of a much smaller one."""
    run = run_of(harness, "eager", "kahan", lr=1.0)
    run.feed(TINY / 4)
    assert true_weights(run) != run.weights()
    values = {name: np.full_like(value, 2.0**-12) for name, value in harness.parameters(run.model).items()}
    harness.set_parameters(run.model, values)
    assert true_weights(run) == run.weights() == [2.0**-12]
    other = run_of(harness, "eager", "kahan", lr=1.0, values=(2.0**-12,))
    other.feed(2.0**-22)
    assert true_weights(other) != other.weights() == [2.0**-12]
    state = run.amp.state_dict()
    other.amp.load_state_dict({**state, "update": {**state["update"], "compensation": {}}})
    assert true_weights(other) == other.weights()
    run.feed(-(2.0**-14))
    assert run.weights() == [2.0**-12 + 2.0**-14]


@pytest.mark.parametrize("update", KINDS)
def test_weights_that_are_loaded_are_rounded_to_the_nearest(harness, update):
    """Ties to even; stochastic rounding is for updates."""
    given = [1.0 + 0.75 * 2.0**-7, 1.0 + 2.0**-8, 1.0 + 3.0 * 2.0**-8]
    run = run_of(harness, "eager", update, values=(2.0,) * len(given))
    names = list(run.amp.master_weights(run.model))
    run.amp.load_master_weights(run.model, {name: np.float32([v]) for name, v in zip(names, given, strict=True)})
    assert run.weights() == list(map(bfloat16, given))
    assert true_weights(run) == (given if update == "kahan" else run.weights())


def test_compensations_of_other_models_are_refused(harness):
    one, two = run_of(harness, "eager", "kahan"), run_of(harness, "eager", "kahan", values=(1.0, 1.0))
    for run in (one, two):
        run.feed(*[1.0] * len(run.weights()))
    before = true_weights(one)
    with pytest.raises(ua.CheckpointError, match="compensation"):
        one.amp.load_state_dict(two.amp.state_dict())
    assert true_weights(one) == before
