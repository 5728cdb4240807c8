"""Moments in fewer bits between steps: the optimizer's float32 update, and what is kept of it, by the reference.

The oracle is the update in float64, whose moments ``state_rounding`` rounds; the numbers are such that nothing else is.
"""

import functools
import json
import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.backend import converted, rounding, state_rounding
from unifiedamp.conformance.driver import probe_run, session
from unifiedamp.conformance.harness import load_harness

pytestmark = pytest.mark.needs("state_dtype")

LR, MOMENTUM = 2.0**-6, 0.5
SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=3)
VALUES = (1.0,) * 4
DTYPES = ["bfloat16", "float8"]


def run_of(harness, form, dtype, base="float32", seed=0, **options):
    policy = ua.Policy.parse(str(harness.pure_policies.get(base, base)))
    options = {"values": VALUES, "loss_scale": "none"} | options
    kind, lr = options.pop("kind", "sgd"), options.pop("lr", 2.0**-20)

    def make(model):
        with harness.left_to_prepare():
            if kind == "adam":
                return harness.adam([model], lr)
            return harness.sgd([model], LR, MOMENTUM)

    policy = policy.replace(state_dtype=dtype, update_seed=seed if dtype else 0, **options.pop("changes", {}))
    known = harness.capabilities().feature("state_dtype")
    if dtype and dtype not in probe_dtypes(harness):
        with pytest.raises(ua.UnsupportedError, match="nearest policy that runs"):
            probe_run(harness, form, policy=policy, make=make, **options)
        pytest.skip(f"state_dtype={dtype} is refused: {known.reason}")
    return probe_run(harness, form, policy=policy, make=make, **options)


@functools.cache
def probe_dtypes(harness):
    """Return what the backend keeps moments in."""
    amp = ua.Amp(harness.backend, "float32")
    known = tuple(amp.backend.optimizer_states.dtypes)
    amp.close()
    return known


def moments(run):
    (found,) = run.amp.backend.optimizer_states.read()
    return found


def random_gradients(steps, values=VALUES):
    return np.random.default_rng(0).integers(-64, 65, (steps, len(values))) / 8


class Momentum:
    """SGD with momentum in float64, whose moments are rounded."""

    def __init__(self, dtype, names, seed=0):
        self.dtype, self.seed, self.steps = dtype, seed, 0
        self.weights = np.ones(len(names))
        self.moments = dict.fromkeys(names, 0.0)

    def step(self, gradients):
        for place, (name, gradient) in enumerate(zip(self.moments, gradients, strict=True)):
            moment = name.rpartition("/")[2]
            downhill = moment == "velocity"
            new = MOMENTUM * self.moments[name] + (-LR * gradient if downhill else gradient)
            self.weights[place] += new if downhill else -LR * new
            key = rounding.param_key(name)
            step = rounding.step_key(self.seed, self.steps)
            kept = state_rounding.kept(np.float32([new]), self.dtype, moment, key, step)
            self.moments[name] = float(kept[0])
        self.steps += 1


@pytest.mark.filterwarnings("ignore::unifiedamp.CompileWarning")  # what the host packs is in no CUDA graph
@pytest.mark.parametrize("dtype", DTYPES)
def test_moments_are_the_references(harness, form, dtype):
    seed = 7
    run, oracle = run_of(harness, form, dtype, seed=seed), None
    for gradients in random_gradients(12):
        run.feed(*gradients)
        oracle = oracle or Momentum(dtype, list(moments(run)), seed)
        oracle.step(gradients)
        assert {name: float(value[0]) for name, value in moments(run).items()} == oracle.moments
        np.testing.assert_allclose(run.weights(), oracle.weights, rtol=2.0**-22)
    assert len(set(oracle.moments.values())) > 2


@pytest.mark.filterwarnings("ignore::unifiedamp.CompileWarning")
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_moment_has_separate_random_numbers(harness, form, dtype):
    """Those of Adam's first step, each as the reference rounds what that step makes of the gradient."""
    seed, gradients = 3, random_gradients(1, (1.0,) * 12)[0] + 1 / 16
    run = run_of(harness, form, dtype, seed=seed, values=(1.0,) * 12, kind="adam")
    run.feed(*gradients)
    found, step = moments(run), rounding.step_key(seed, 0)
    of_param = {name.rpartition("/")[0]: value for name, value in zip(list(found)[::2], gradients, strict=True)}
    for name, kept in found.items():
        param, _, moment = name.rpartition("/")
        exact = 0.1 * of_param[param] if moment == "first_moment" else 0.001 * of_param[param] ** 2
        expected = state_rounding.kept(np.float32([exact]), dtype, moment, rounding.param_key(name), step)
        assert float(kept[0]) == float(expected[0]), name


@pytest.mark.needs("loss_scaling")
def test_a_skip_changes_no_moment_and_no_random_number(harness, form):
    straight, skipping = (run_of(harness, form, "bfloat16", loss_scale=SCALE) for _ in range(2))
    for step, gradients in enumerate(random_gradients(6)):
        straight.feed(*gradients)
        skipping.feed(*gradients)
        if step in (1, 3):
            before = moments(skipping), skipping.weights()
            skipping.feed(*gradients[:-1], math.inf)
            assert (moments(skipping), skipping.weights()) == before
    assert moments(skipping) == moments(straight)
    assert skipping.weights() == straight.weights()
    assert skipping.amp.skipped_steps == 2


def test_a_second_moment_goes_on_falling(harness):
    """By a thousandth per step, from 1.024 to 0.985; rounding to nearest would leave it. 4 standard deviations."""
    values = (1.0,) * 12
    run = run_of(harness, "eager", "bfloat16", values=values, kind="adam")
    run.feed(*[32.0] * len(values))
    for _ in range(39):
        run.feed(*[0.0] * len(values))
    seconds = [float(value[0]) for name, value in moments(run).items() if name.endswith("/second_moment")]
    assert np.mean(seconds) == pytest.approx(1.024 * 0.999**39, abs=0.019)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_second_moment_stays_above_zero(harness, dtype):
    """Beside one that is 2**48 times as large: an update divides by its square root."""
    if dtype not in probe_dtypes(harness):
        pytest.skip(f"state_dtype={dtype} is refused")
    amp = session(harness, policy=ua.Policy(state_dtype=dtype), loss_scale="none")
    with amp.scope(), harness.left_to_prepare():
        model = harness.mlp([(np.zeros((2, 4), np.float32), np.zeros(4, np.float32))])
        optimizer = harness.adam([model], 2.0**-20)
    model, optimizer = amp.prepare(model, optimizer)
    x, y = (amp.to_native(np.float32([row])) for row in ([1.0, 2.0**-24], [1.0] * 4))
    amp.backward(lambda: harness.mean_square(model(x), y), optimizer)
    amp.step(optimizer)
    (found,) = amp.backend.optimizer_states.read()
    seconds = [value for name, value in found.items() if name.endswith("/second_moment")]
    assert sorted(value.size for value in seconds) == [4, 8]
    assert all((value > 0).all() for value in seconds)


@pytest.mark.parametrize("dtype", DTYPES)
def test_moments_of_many_numbers_are_the_references(harness, dtype):
    """Float8 has a scale for each block of them: gradients differ by 2**20 from one to the next."""
    if dtype not in probe_dtypes(harness):
        pytest.skip(f"state_dtype={dtype} is refused")
    count = 2 * state_rounding.BLOCK + 8
    amp = session(harness, policy=ua.Policy(state_dtype=dtype), loss_scale="none")
    with amp.scope(), harness.left_to_prepare():
        model = harness.mlp([(np.zeros((2, count), np.float32), np.zeros(count, np.float32))])
        optimizer = harness.sgd([model], LR, MOMENTUM)
    model, optimizer = amp.prepare(model, optimizer)
    block = np.arange(count) // state_rounding.BLOCK
    rows = np.random.default_rng(0).normal(size=(3, count)) * np.exp2(-20.0 * block)
    x, y = (amp.to_native(array.astype(np.float32)) for array in (np.ones((3, 2)), rows))
    amp.backward(lambda: harness.mean_square(model(x), y), optimizer)
    given = [np.array(amp.to_numpy(gradient), np.float32) for gradient in amp.gradients(optimizer).values()]
    amp.step(optimizer)
    (found,) = amp.backend.optimizer_states.read()
    assert sorted(value.size for value in found.values()) == [count, 2 * count]
    for name, value in found.items():
        (gradient,) = [each for each in given if each.size == value.size]
        moment = name.rpartition("/")[2]
        new = -np.float32(LR) * gradient if moment == "velocity" else gradient
        key, step = rounding.param_key(name), rounding.step_key(0, 0)
        np.testing.assert_array_equal(value, state_rounding.kept(new, dtype, moment, key, step))


@pytest.mark.parametrize("update", ["kahan", "stochastic"])
@pytest.mark.needs("weight_updates")
def test_moments_of_bfloat16_parameters(harness, form, update):
    """The moments are those of float32 parameters, and of the reference."""
    run = run_of(harness, form, "bfloat16", "bfloat16", changes={"update": update})
    oracle = None
    for gradients in random_gradients(8):
        run.feed(*gradients)
        oracle = oracle or Momentum("bfloat16", list(moments(run)))
        oracle.step(gradients)
    assert {name: float(value[0]) for name, value in moments(run).items()} == oracle.moments
    true = [float(value[0]) for value in run.amp.master_weights(run.model).values()]
    tolerance = 2.0**-14 if update == "kahan" else 2.0**-4
    np.testing.assert_allclose(true, oracle.weights, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_moments_take_fewer_bytes(harness, dtype):
    run = run_of(harness, "eager", dtype)
    run.feed(*VALUES)
    each = {"bfloat16": 2, "float8": 1 + 4}[dtype]  # a block of one number has a scale too
    assert run.amp.backend.optimizer_states.nbytes() == len(VALUES) * each


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_closed_session_leaves_float32_moments(harness, dtype):
    """Another session, without ``state_dtype``, goes on from the values that were kept, and rounds none."""
    run, gradients = run_of(harness, "eager", dtype), random_gradients(6)
    for each in gradients[:3]:
        run.feed(*each)
    kept, expected = [float(value[0]) for value in moments(run).values()], np.float64(run.weights())
    downhill = next(iter(moments(run))).endswith("velocity")
    run.amp.close()
    amp = session(harness, loss_scale="none")
    model, optimizer = amp.prepare(run.model, run.optimizer)
    for each in gradients[3:]:
        x = amp.to_native(np.float32(each))
        amp.backward(lambda x=x: model(x), optimizer)
        amp.step(optimizer)
        kept = [MOMENTUM * m + (-LR * g if downhill else g) for m, g in zip(kept, each, strict=True)]
        expected += np.float64(kept) * (1 if downhill else -LR)
    found = [float(value[0]) for value in harness.parameters(model).values()]
    np.testing.assert_allclose(found, expected, rtol=2.0**-21)


@pytest.mark.parametrize("dtype", DTYPES)
def test_moments_go_on_bit_for_bit_from_a_state(harness, dtype):
    gradients = random_gradients(6)
    straight, first, second = (run_of(harness, "eager", dtype, seed=3) for _ in range(3))
    for index, each in enumerate(gradients):
        straight.feed(*each)
        if index == 3:
            second.amp.load_master_weights(second.model, first.amp.master_weights(first.model))
            second.amp.load_state_dict(json.loads(json.dumps(first.amp.state_dict(moments=True))))
        (first if index < 3 else second).feed(*each)
    assert moments(second) == moments(straight)
    assert second.weights() == straight.weights()


def test_a_schedule_goes_on_from_a_state(harness):
    """One that the optimizer holds: the rate of the next update is that of its count."""
    rates = (0.5, 0.25, 0.125, 0.0625)

    def make(model):
        with harness.left_to_prepare():
            return harness.scheduled_sgd(model, rates)

    policy = ua.Policy(state_dtype="bfloat16")
    first, second = (probe_run(harness, policy=policy, make=make, loss_scale="none") for _ in range(2))
    for _ in range(2):
        first.feed(1.0)
    second.amp.load_master_weights(second.model, first.amp.master_weights(first.model))
    second.amp.load_state_dict(json.loads(json.dumps(first.amp.state_dict(moments=True))))
    for expected in (0.125, 0.0625):
        for run in (first, second):
            run.feed(1.0)
            assert run.weights() == [expected]


def test_counts_of_other_optimizers_are_refused(harness):
    run = run_of(harness, "eager", "bfloat16")
    run.feed(*VALUES)
    saved = run.amp.state_dict()
    assert saved["states"] == {"dtype": "bfloat16", "seed": 0, "steps": [1]}
    for broken, said in (({"steps": [1, 2]}, "2 optimizers"), ({"dtype": "float4"}, "float4"), ({"seed": -1}, "seed")):
        with pytest.raises(ua.CheckpointError, match=said):
            run.amp.load_state_dict({**saved, "states": saved["states"] | broken})
    assert run.amp.state_dict() == saved


@pytest.mark.needs("weight_updates")
@pytest.mark.filterwarnings("ignore:the state was saved under policy:unifiedamp.StateWarning")  # one may be emulated
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_moments_and_compensations_go_on_under_another_backend(harness, peer, kind):
    """SGD's momentum is exact on each; Adam's arithmetic differs by last places."""
    other = load_harness(peer)
    if not other.capabilities().feature("weight_updates"):
        pytest.skip(f"{peer} has no weight_updates")
    answer = other.capabilities().policies["bfloat16"]
    if not answer:
        pytest.skip(f"{peer}: {answer.reason}")
    gradients = random_gradients(6)
    straight, first, second = (
        run_of(each, "eager", None, "bfloat16", kind=kind, lr=2.0**-10, changes={"update": "kahan"})
        for each in (harness, other, harness)
    )
    for index, each in enumerate(gradients):
        straight.feed(*each)
        if index == 3:
            weights = first.amp.master_weights(first.model)
            second.amp.load_master_weights(second.model, weights)
            second.amp.load_state_dict(json.loads(json.dumps(first.amp.state_dict(moments=True))))
        (first if index < 3 else second).feed(*each)
    one, two = true_weights(straight), true_weights(second)
    np.testing.assert_allclose(two, one, rtol=0, atol=2.0**-15)
    assert max(abs(value - 1) for value in one) > 2.0**-10


@pytest.mark.parametrize("dtype", DTYPES)
def test_moments_in_fewer_bits_move_from_another_backend(harness, peer, dtype):
    """What is kept has few significant bits in each framework; a velocity is a momentum times a power of two here."""
    other = load_harness(peer)
    if not other.capabilities().feature("state_dtype") or dtype not in probe_dtypes(other):
        pytest.skip(f"{peer} has no state_dtype={dtype}")
    first, second = (run_of(each, "eager", dtype, values=(1.0,) * 4) for each in (other, harness))
    for gradients in random_gradients(3):
        first.feed(*gradients)
    second.feed(*[0.5] * 4)
    second.amp.load_state_dict(json.loads(json.dumps(first.amp.state_dict(moments=True))))
    given, found = moments(first), moments(second)
    for key, value in found.items():
        name, _, moment = key.rpartition("/")
        np.testing.assert_array_equal(value, converted(given, name, moment, LR))
    assert any(value.any() for value in found.values())


def true_weights(run):
    return [float(value[0]) for value in run.amp.master_weights(run.model).values()]


@pytest.mark.filterwarnings("ignore::unifiedamp.CompileWarning")  # what the host packs is in no CUDA graph
@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_decay_where_their_moments_alone_have_fewer_bits(harness, form, dtype):
    """As without: numbers that float32 holds."""

    def make(model):
        with harness.left_to_prepare():
            return harness.decaying_sgd(model, 0.5, 1.0)

    if dtype not in probe_dtypes(harness):
        pytest.skip(f"state_dtype={dtype} is refused")
    policy = ua.Policy.parse(f"float32;state_dtype={dtype}")
    run = probe_run(harness, form, policy=policy, make=make, loss_scale="none")
    for expected in (0.375, 0.0625):
        run.feed(0.25)
        assert run.weights() == [expected]
