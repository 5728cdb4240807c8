"""Regions inside regions, of one kind and of several; modes and gradients are put back; scopes find what they found."""

import contextlib

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session, settled_state

MIXED = "mixed_bfloat16"


def runs_in(harness):
    return harness.run_op(harness.low_precision_op)


def convnet(harness, policy="float32"):
    amp = session(harness, policy=policy)
    with amp.scope():
        model = harness.convnet(0)
        optimizer = harness.sgd([model], 0.1)
    return (amp, *amp.prepare(model, optimizer))


def images(harness, amp, count=4, offset=3.0):
    array = np.random.default_rng(0).normal(size=(count, 8, 8, 1)).astype(np.float32) + offset
    return amp.to_native(harness.image_batch(array))


def test_regions_of_one_kind_nest(harness):
    """Three deep, left one by one: each level is as it was, and in the end nothing is left."""
    amp = session(harness, policy=MIXED)
    found = [settled_state(harness)]
    with amp.autocast():
        found.append(harness.global_state())
        with amp.autocast():
            found.append(harness.global_state())
            with amp.autocast():
                assert runs_in(harness) == "bfloat16"
            assert harness.global_state() == found[2]
        assert harness.global_state() == found[1]
        assert runs_in(harness) == "bfloat16"
    assert harness.global_state() == found[0]
    assert runs_in(harness) == "float32"


def test_an_inner_region_left_by_an_exception(harness):
    amp = session(harness, policy=MIXED)
    before = settled_state(harness)
    with amp.autocast():
        inside = harness.global_state()
        with pytest.raises(KeyError), amp.autocast():
            raise KeyError
        assert harness.global_state() == inside
        assert runs_in(harness) == "bfloat16"
    assert harness.global_state() == before


def test_disabled_regions_nest(harness):
    amp = session(harness, policy=MIXED)
    seen = []
    with amp.autocast(enabled=False):
        seen.append(runs_in(harness))
        with amp.autocast(enabled=False):
            seen.append(runs_in(harness))
            with amp.autocast():
                seen.append(runs_in(harness))
        seen.append(runs_in(harness))
    assert seen == ["float32", "float32", "bfloat16", "float32"]


@pytest.mark.parametrize("outer", ["autocast", "inference"])
@pytest.mark.parametrize("inner", ["autocast", "inference"])
def test_regions_of_both_kinds_nest(harness, outer, inner):
    amp, model, _ = convnet(harness, MIXED)
    before, attached = settled_state(harness), harness.attached(model)
    with getattr(amp, outer)():
        around, shape = harness.global_state(), harness.attached(model)
        with getattr(amp, inner)():
            assert runs_in(harness) == "bfloat16"
        assert harness.global_state() == around
        assert harness.attached(model) == shape
        assert runs_in(harness) == "bfloat16"
    assert harness.global_state() == before
    assert harness.attached(model) == attached


def test_evaluating_inside_a_training_region(harness, form):
    """The loss computed before an evaluation in the same region trains as if there had been none."""
    weights = []
    for evaluates in (False, True):
        amp = session(harness, form)
        model = harness.probe([1.0, 2.0])
        model, optimizer = amp.prepare(model, harness.sgd([model], 0.1))

        def step(x, amp=amp, model=model, optimizer=optimizer, evaluates=evaluates):
            def loss():
                first = model(x)
                if evaluates:
                    with amp.inference(model):
                        model(x)
                return first + model(x)

            amp.backward(loss, optimizer)
            amp.step(optimizer)

        step = compiled(amp, form, step)
        for _ in range(2):
            step(amp.to_native(np.float32([1.0, 2.0])))
        weights.append([float(value[0]) for value in harness.parameters(model).values()])
    assert weights[0] == weights[1] == pytest.approx([0.6, 1.2], abs=1e-6)


def test_evaluating_first_in_a_region_in_low_precision(harness):
    """What inference cast without gradients is not what the training pass of the same region uses."""
    rng = np.random.default_rng(0)
    layers = [(rng.normal(size=(6, 6)).astype(np.float32), np.zeros(6, np.float32)) for _ in range(2)]
    trained = []
    for evaluates in (False, True):
        amp = session(harness, policy=MIXED)
        with amp.scope():
            model = harness.mlp(layers)
            optimizer = harness.sgd([model], 0.1)
        model, optimizer = amp.prepare(model, optimizer)
        x, y = (amp.to_native(np.full((4, 6), value, np.float32)) for value in (1.0, 0.0))

        def loss(amp=amp, model=model, x=x, y=y, evaluates=evaluates):
            if evaluates:
                with amp.inference(model):
                    model(x)
            return harness.mean_square(model(x), y)

        amp.backward(loss, optimizer)
        amp.step(optimizer)
        trained.append(harness.parameters(model))
    for name, value in trained[0].items():
        np.testing.assert_array_equal(trained[1][name], value)


def test_steps_inside_one_region(harness):
    """Each forward pass sees the weights of the step before, and no cast of older ones."""
    rng = np.random.default_rng(0)
    layers = [(rng.normal(size=(6, 6)).astype(np.float32), np.zeros(6, np.float32)) for _ in range(2)]
    trained = []
    for around in (False, True):
        amp = session(harness, policy=MIXED)
        with amp.scope():
            model = harness.mlp(layers)
            optimizer = harness.sgd([model], 0.1)
        model, optimizer = amp.prepare(model, optimizer)
        x, y = (amp.to_native(np.full((4, 6), value, np.float32)) for value in (1.0, 0.0))
        with amp.autocast() if around else contextlib.nullcontext():
            for _ in range(3):
                amp.backward(lambda model=model, x=x, y=y: harness.mean_square(model(x), y), optimizer)
                amp.clip_grad_norm(optimizer, 2.0)
                amp.clip_grad_value(optimizer, 0.25)
                assert amp.step(optimizer).applied
        trained.append(harness.parameters(model))
    for name, value in trained[0].items():
        np.testing.assert_array_equal(trained[1][name], value)


def test_an_evaluation_between_loss_and_step_changes_nothing(harness):
    amp = session(harness, loss_scale=4.0)
    model = harness.probe([1.0])
    model, optimizer = amp.prepare(model, harness.sgd([model], 0.1))
    x = amp.to_native(np.float32([2.0]))
    for _ in range(2):
        amp.backward(lambda: model(x), optimizer)
        with amp.inference(model):
            model(x)
        assert amp.step(optimizer).applied
        with amp.inference(model):
            model(x)
    assert harness.parameters(model).popitem()[1] == pytest.approx([0.6], abs=1e-6)


@pytest.mark.needs("context_form")
def test_no_gradients_come_of_inference(harness):
    """A loss computed there is refused, and no weight moves. (Where functions are differentiated, there is none.)"""
    amp = session(harness, loss_scale=4.0)
    model = harness.probe([1.0])
    model, optimizer = amp.prepare(model, harness.sgd([model], 0.1))
    x = amp.to_native(np.float32([2.0]))

    def loss():
        with amp.inference(model):
            return model(x)

    with pytest.raises(ua.LossError):
        amp.backward(loss, optimizer)
    assert harness.parameters(model).popitem()[1] == [1.0]


def test_after_an_inner_inference_the_region_trains(harness):
    """Batch norm goes by its statistics inside alone, and by the batch before and after, also after an exception."""
    amp, model, _ = convnet(harness)
    x = images(harness, amp)
    with amp.autocast():
        first = amp.to_numpy(model(x))
        with amp.inference(model):
            rests = amp.to_numpy(model(x))
        second = amp.to_numpy(model(x))
        with pytest.raises(KeyError), amp.inference(model):
            raise KeyError
        third = amp.to_numpy(model(x))
    assert np.abs(rests - first).max() > 1e-2
    np.testing.assert_array_equal(second, first)
    np.testing.assert_array_equal(third, first)


def test_a_region_inside_inference_does_not_train(harness):
    """Batch norm rests in inference, also where a region is opened inside."""
    amp, model, _ = convnet(harness)
    x = images(harness, amp)
    with amp.inference(model):
        first = amp.to_numpy(model(x))
        with amp.autocast():
            inner = amp.to_numpy(model(x))
        second = amp.to_numpy(model(x))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, inner)


def test_a_layer_at_rest_stays_at_rest(harness):
    """What a user froze (batch norm in evaluation mode) is as they left it after an inference, and the rest trains."""
    amp, model, _ = convnet(harness)
    harness.rest(model, "norm")
    before = harness.attached(model)
    for failing in (False, True):
        try:
            with amp.inference(model):
                assert harness.attached(model) != before
                if failing:
                    raise KeyError
        except KeyError:
            assert failing
        assert harness.attached(model) == before


def test_nested_inference_rests_until_the_outer_one_ends(harness):
    amp, model, _ = convnet(harness)
    x = images(harness, amp)
    with amp.inference(model):
        first = amp.to_numpy(model(x))
        with amp.inference(model):
            model(x)
        np.testing.assert_array_equal(amp.to_numpy(model(x)), first)
    with amp.inference(model):
        np.testing.assert_array_equal(amp.to_numpy(model(x)), first)


@pytest.mark.parametrize("region", ["scope", "autocast", "inference"])
def test_settings_of_the_process_are_those_found(harness, region):
    """Not the framework's defaults: what the user had set before."""
    amp = session(harness, policy=MIXED)
    with harness.other_state():
        before = settled_state(harness)
        with getattr(amp, region)():
            pass
        assert harness.global_state() == before
        with pytest.raises(KeyError), getattr(amp, region)():
            raise KeyError
        assert harness.global_state() == before


def test_scopes_nest(harness):
    outer, inner = session(harness, policy=MIXED), session(harness, policy="float32")
    before = settled_state(harness)
    with outer.scope():
        around = harness.global_state()
        with inner.scope():
            plain = harness.probe([1.0])
        assert harness.global_state() == around
        with outer.scope():
            pass
        assert harness.global_state() == around
    assert harness.global_state() == before
    assert harness.parameters(plain).popitem()[1].tolist() == [1.0]


@pytest.mark.parametrize("elsewhere", [False, True], ids=["defaults", "others"])
def test_what_a_scope_makes_is_the_sessions(harness, elsewhere):
    """Whatever the settings of the process are: it trains on the session's batches."""
    amp = session(harness, policy=MIXED, loss_scale=4.0)
    with harness.other_state() if elsewhere else contextlib.nullcontext(), amp.scope():
        model = harness.probe([1.0])
        optimizer = harness.sgd([model], 0.1)
    model, optimizer = amp.prepare(model, optimizer)
    x = amp.to_native(np.float32([1.0]))
    amp.backward(lambda: model(x), optimizer)
    assert amp.step(optimizer).applied
    assert harness.parameters(model).popitem()[1] == pytest.approx([0.9], abs=1e-6)


def test_inference_is_of_all_models(harness):
    """Of those prepared before the last one, too."""
    amp, first, _ = convnet(harness)
    with amp.scope():
        second = harness.convnet(1)
    second, x = amp.prepare(second), images(harness, amp)
    for model in (first, second):
        with amp.inference():
            found = [np.asarray(amp.to_numpy(model(x))) for _ in range(2)]
        with amp.inference(model):
            found.append(np.asarray(amp.to_numpy(model(x))))
        for answer in found[1:]:
            np.testing.assert_array_equal(answer, found[0])


@pytest.mark.parametrize("first", ["inference", "autocast"])
def test_a_compiled_call_follows_its_region(harness, form, first):
    """One call is for both: it answers by the batch's statistics where it trains, else by the running ones."""
    answers = []
    for each in ("eager", form):
        amp = session(harness, each)
        with amp.scope():
            model = harness.convnet(0)
        model = amp.prepare(model)
        call, found = compiled(amp, each, lambda x, model=model: model(x)), []
        images = np.random.default_rng(0).normal(2.0, 3.0, (8, 8, 8, 1)).astype(np.float32)
        x = amp.to_native(harness.image_batch(images))
        second = "autocast" if first == "inference" else "inference"
        for kind in (first, second, second, first):
            with getattr(amp, kind)(*[model] * (kind == "inference")):
                found.append(np.float64(amp.to_numpy(call(x))))
        answers.append(found)
    eager, here = answers
    assert np.abs(eager[0] - eager[1]).max() > 0.1
    np.testing.assert_allclose(here, eager, rtol=1e-3, atol=1e-3)
