"""``amp.close()`` leaves nothing: neither in the process, nor on models and optimizers, nor in what they compute."""

import contextlib
import copy
import gc
import itertools
import pickle
import threading

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, probe_run, session, settled_state

MIXED = ua.Policy.parse("mixed_bfloat16")
POLICIES = {
    "float32": {"policy": "float32"},
    "mixed": {"policy": MIXED, "loss_scale": 4.0},
    "accumulating": {"policy": MIXED, "loss_scale": "dynamic", "accumulate_steps": 2},
    "overridden": {"policy": MIXED.replace(op_overrides={"linear": "float32"})},
    "tuned": {"policy": MIXED, "tuning": {"fused_optimizer": True, "channels_last": True, "best_effort": True}},
}


@pytest.fixture(params=POLICIES)
def options(request, harness):
    """What the session is made with."""
    if request.param == "overridden" and not harness.capabilities().feature("op_overrides"):
        pytest.skip("the backend declares no op_overrides")
    return POLICIES[request.param]


def layers(sizes=(6, 5, 3)):
    rng = np.random.default_rng(0)
    pairs = itertools.pairwise(sizes)
    return [(rng.normal(size=pair).astype(np.float32), rng.normal(size=pair[1]).astype(np.float32)) for pair in pairs]


def batch():
    return np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)


def by_hand(x):
    (w0, b0), (w1, b1) = [(w.astype(np.float64), b.astype(np.float64)) for w, b in layers()]
    return np.maximum(x.astype(np.float64) @ w0 + b0, 0) @ w1 + b1


def trained(harness, amp, model, optimizer, steps=2):
    x, y = amp.to_native(batch()), amp.to_native(np.zeros((4, 3), np.float32))
    for _ in range(steps):
        amp.backward(lambda: harness.mean_square(model(x), y), optimizer)
        amp.clip_grad_norm(optimizer, 1.0)
        amp.step(optimizer)
    with amp.inference(model):
        model(x)


def test_the_process_is_as_before(harness, options):
    gc.collect()  # sessions that were not closed
    threads = {thread.name for thread in threading.enumerate()}
    before = settled_state(harness)
    amp = session(harness, **options)
    with amp.scope():
        model = harness.mlp(layers())
        optimizer = harness.sgd([model], 0.01)
    trained(harness, amp, *amp.prepare(model, optimizer))
    amp.close()
    assert harness.global_state() == before
    assert harness.run_op(harness.low_precision_op) == "float32"
    assert {thread.name for thread in threading.enumerate()} <= threads


def test_models_and_optimizers_are_as_before(harness, options):
    """What ``prepare`` attached to the objects given is gone, whether they were used or not."""
    for used in (False, True):
        amp = session(harness, **options)
        count = 2 if amp.capabilities.feature("several_optimizers") else 1
        with amp.scope():
            models = [harness.mlp(layers()) for _ in range(count)]
            optimizers = [harness.sgd([model], 0.01) for model in models]
        before = [harness.attached(each) for each in (*models, *optimizers)]
        prepared = amp.prepare(*models, *optimizers)
        if used:
            for model, optimizer in zip(prepared[:count], prepared[count:], strict=True):
                trained(harness, amp, model, optimizer)
        amp.close()
        assert [harness.attached(each) for each in (*models, *optimizers)] == before


@pytest.mark.needs("layer_overrides")
def test_a_model_made_before_the_session_answers_as_before(harness):
    """In float32, with overrides that changed what it computed meanwhile."""
    model = harness.mlp(layers())
    amp = session(harness, policy=ua.Policy.parse("float32").replace(layer_overrides={"layer0": "bfloat16"}))
    try:
        model = amp.prepare(model)
    except ua.PrepareError:
        pytest.skip("this framework gives a policy to layers when they are made")
    x = amp.to_native(batch())
    with amp.inference(model):
        meanwhile = np.asarray(amp.to_numpy(model(x)), np.float64)
    amp.close()
    other = session(harness)
    with other.inference():
        found = np.asarray(other.to_numpy(model(x)), np.float64)
    assert np.abs(meanwhile - by_hand(batch())).max() > 1e-3
    np.testing.assert_allclose(found, by_hand(batch()), rtol=1e-4, atol=1e-4)


def test_closing_twice_is_harmless(harness):
    before = settled_state(harness)
    amp = session(harness, policy=MIXED)
    with amp.scope():
        model = harness.mlp(layers())
    model = amp.prepare(model)
    attached = None
    for _ in range(2):
        amp.close()
        attached = attached or harness.attached(model)
        assert harness.attached(model) == attached
    assert harness.global_state() == before


def test_another_session_goes_on(harness):
    """Two sessions, a model each: closing one leaves the other's casts, steps and scale."""
    pairs = []
    for _ in range(2):
        amp = session(harness, policy=MIXED, loss_scale=4.0)
        with amp.scope():
            model = harness.mlp(layers())
            optimizer = harness.sgd([model], 0.01)
        pairs.append((amp, *amp.prepare(model, optimizer)))
    (first, *_), (amp, model, optimizer) = pairs
    x = amp.to_native(batch())
    with amp.inference(model):
        expected = amp.to_numpy(model(x))
    first.close()
    with amp.inference(model):
        assert harness.run_op(harness.low_precision_op) == "bfloat16"
        np.testing.assert_array_equal(amp.to_numpy(model(x)), expected)
    trained(harness, amp, model, optimizer)
    assert (amp.applied_steps, amp.loss_scale) == (2, 4.0)


def test_a_model_is_prepared_anew(harness):
    """By another session, after the first was closed: trained and scaled by the second alone."""
    model = harness.probe([1.0])
    for loss_scale, expected in ((4.0, 0.9), (32.0, 0.8)):
        amp = session(harness, loss_scale=loss_scale)
        model, optimizer = amp.prepare(model, harness.sgd([model], 0.1))
        x = amp.to_native(np.float32([1.0]))
        amp.backward(lambda model=model, x=x: model(x), optimizer)
        (value,) = amp.gradients(optimizer).values()
        assert float(np.ravel(amp.to_numpy(value))[0]) == loss_scale
        assert amp.step(optimizer).applied
        assert harness.parameters(model).popitem()[1] == pytest.approx([expected], abs=1e-6)
        amp.close()


@pytest.mark.parametrize("policy", ["float32", "bfloat16"])
def test_a_window_that_is_open_is_dropped(harness, policy):
    """Its scaled gradients are applied neither by the framework's own step nor by another session's."""
    options = {} if policy == "float32" else {"policy": harness.pure_policies[policy], "master_weights": True}
    if options and not harness.capabilities().feature("master_weights"):
        pytest.skip("the backend declares no master_weights")
    run = probe_run(harness, loss_scale=1024.0, accumulate_steps=2, **options)
    x = run.amp.to_native(np.float32([1.0]))
    run.amp.backward(lambda: run.model(x), run.optimizer)
    run.amp.close()
    with contextlib.suppress(UserWarning):  # a framework may refuse a step without gradients
        harness.native_step(run.optimizer)
    assert run.weights() == [1.0]
    amp = session(harness, loss_scale=4.0, **options)
    model, optimizer = amp.prepare(run.model, harness.sgd([run.model], 0.1))
    amp.backward(lambda: model(x), optimizer)
    assert amp.step(optimizer).applied
    assert run.weights() == pytest.approx([0.9], rel=2.0**-8)


@pytest.mark.parametrize("loss_scale", ["none", 4.0])
def test_counts_are_those_of_the_session(harness, loss_scale):
    """An optimizer that another session has stepped: its own count goes on, and the new session's begins at 0."""
    model = harness.probe([1.0])
    optimizer = harness.adam([model], 0.1)
    for count in (2, 3):
        amp = session(harness, loss_scale=loss_scale)
        model, optimizer = amp.prepare(model, optimizer)
        assert (amp.applied_steps, amp.skipped_steps) == (0, 0)
        x = amp.to_native(np.float32([1.0]))
        for _ in range(count):
            amp.backward(lambda model=model, x=x: model(x), optimizer)
            amp.step(optimizer)
        assert (amp.applied_steps, amp.skipped_steps) == (count, 0)
        amp.close()
    assert harness.optimizer_steps(optimizer) == 5


@pytest.mark.needs("master_weights")
@pytest.mark.parametrize("before", ["masters", "float32"])
@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
def test_momentum_of_masters_outlives_the_session(harness, form, policy, before):
    """Steps of 1, 1.5 and 1.75 times the learning rate, the last one under another session."""
    options = {"policy": harness.pure_policies[policy], "master_weights": True, "loss_scale": 4.0}
    amp = session(harness, form, **options if before == "masters" else {"policy": "float32", "loss_scale": 4.0})
    with amp.scope():
        model = harness.probe([1.0])
        optimizer = harness.sgd([model], 0.125, 0.5)
    for count in (2, 1):
        try:
            model, optimizer = amp.prepare(model, optimizer)
        except ua.PrepareError as refusal:
            if "belong to no prepared model" in str(refusal):
                raise
            pytest.skip(f"refused: {refusal}")

        def step(x, amp=amp, model=model, optimizer=optimizer):
            amp.backward(lambda: model(x), optimizer)
            amp.step(optimizer)

        step = compiled(amp, form, step)
        for _ in range(count):
            step(amp.to_native(np.float32([1.0])))
        assert amp.applied_steps == count
        amp.close()
        amp = session(harness, form, **options)
    assert harness.parameters(model).popitem()[1].tolist() == [1.0 - 0.125 * (1.0 + 1.5 + 1.75)]


@pytest.mark.needs("master_weights")
@pytest.mark.parametrize("loop", ["session", "native"])
@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
def test_moments_of_masters_outlive_the_session(harness, policy, loop):
    """Adam under equal gradients takes the learning rate each time: under another session, or in the framework's own
    loop, over 16-bit weights.
    """
    options = {"policy": harness.pure_policies[policy], "loss_scale": 4.0}
    run = probe_run(harness, lr=0.125, optimizer="adam", master_weights=True, **options)
    for _ in range(2):
        run.feed(1.0)
    run.amp.close()
    model, optimizer = run.model, run.optimizer
    if loop == "session":
        amp = session(harness, master_weights=True, **options)
        try:
            model, optimizer = amp.prepare(model, optimizer)
        except ua.PrepareError as refusal:
            pytest.skip(f"refused: {refusal}")
        x = amp.to_native(np.float32([1.0]))
        amp.backward(lambda: model(x), optimizer)
        amp.step(optimizer)
    else:
        fresh = session(harness)
        x = harness.cast(fresh.to_native(np.float32([1.0])), policy)
        with fresh.autocast():
            loss = model(x)
        fresh.close()
        if not (harness.native_backward(loss) and harness.native_step(optimizer)):
            pytest.skip("the framework has no such calls")
    assert run.weights() == pytest.approx([1.0 - 3 * 0.125], rel=2.0**-7)
    assert harness.optimizer_steps(optimizer) == 3


@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
def test_momentum_goes_on_in_16_bits(harness, form, policy):
    """The same of an optimizer that trained in float32 before, under a session that keeps no master weights."""
    model = harness.probe([1.0])
    optimizer = harness.sgd([model], 0.125, 0.5)
    for count, options in ((2, {"loss_scale": 4.0}), (1, {"policy": harness.pure_policies[policy]})):
        amp = session(harness, form, **options)
        try:
            model, optimizer = amp.prepare(model, optimizer)
        except ua.PrepareError as refusal:
            pytest.skip(f"refused: {refusal}")

        def step(x, amp=amp, model=model, optimizer=optimizer):
            amp.backward(lambda: model(x), optimizer)
            amp.step(optimizer)

        step = compiled(amp, form, step)
        for _ in range(count):
            step(amp.to_native(np.float32([1.0])))
        amp.close()
    assert harness.parameters(model).popitem()[1].tolist() == [1.0 - 0.125 * (1.0 + 1.5 + 1.75)]


def test_a_session_is_neither_pickled_nor_copied(harness):
    """A second one would count and scale for the same optimizer; the deep copy of what holds a session holds it."""
    run = probe_run(harness, loss_scale=4.0)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(ua.WrongObjectError, match=r"cannot be pickled.*amp\.state_dict\(\)"):
            pickle.dumps({"amp": run.amp}, protocol)
    assert copy.deepcopy({"amp": run.amp})["amp"] is run.amp
    run.feed(1.0)
    assert run.weights() == [pytest.approx(0.9)]
