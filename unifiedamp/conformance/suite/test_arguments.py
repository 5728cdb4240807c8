"""Arguments of the wrong kind: refused by name before anything is done, never taken for something else."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session

START, FEED, STEPPED = (1.0, 1.0), (1.0, 2.0), [0.5, 0.0]


@pytest.fixture
def named(harness):
    amp = session(harness, loss_scale=8.0)
    with amp.scope():
        model = harness.probe(START)
        optimizer = harness.sgd([model], 0.5)
    return (amp, *amp.prepare(model, optimizer))


def weights(harness, model):
    return [float(np.ravel(value)[0]) for value in harness.parameters(model).values()]


@pytest.mark.parametrize("several", [list, tuple])
@pytest.mark.parametrize(
    "by", [pytest.param("context", marks=pytest.mark.needs("context_form")), pytest.param("closure")]
)
def test_an_optimizer_that_is_named_twice_gets_the_gradients_once(harness, form, named, by, several):
    amp, model, optimizer = named
    twice = several([optimizer, optimizer])

    def step(x):
        if by == "closure":
            amp.backward(lambda: model(x), twice)
        else:
            with amp.autocast():
                loss = model(x)
            with amp.scale_loss(loss, twice) as scaled_loss:
                scaled_loss.backward()
        amp.step(optimizer)

    compiled(amp, form, step)(amp.to_native(np.float32(FEED)))
    assert weights(harness, model) == STEPPED


@pytest.mark.parametrize("given", ["float32", "mixed_bfloat16", "cuda", 1.0, None])
def test_the_first_argument_of_a_region_is_no_policy_and_no_device(harness, given):
    """``torch.autocast`` takes a device there; a policy goes by its name."""
    amp = session(harness)
    with pytest.raises(ua.ConfigError, match=r"amp\.autocast: enabled must be true or false.*policy="):
        amp.autocast(given)


@pytest.mark.parametrize("given", [3, True, ["float32"]])
def test_what_is_no_policy_of_a_region(harness, given):
    with pytest.raises(ua.PolicyError, match=r"amp\.autocast: policy must be a Policy or its name, got"):
        session(harness).autocast(policy=given)


def test_a_loss_in_the_place_of_its_closure(harness, named):
    amp, model, optimizer = named
    with amp.autocast():
        loss = model(amp.to_native(np.float32(FEED)))
    with pytest.raises(ua.WrongObjectError, match=r"amp\.backward takes a function.*amp\.scale_loss\(loss"):
        amp.backward(loss, optimizer)
    amp.backward(lambda: model(amp.to_native(np.float32(FEED))), optimizer)
    amp.step(optimizer)
    assert weights(harness, model) == STEPPED


def test_inference_is_of_models(harness, named):
    amp, model, optimizer = named
    for wrong in (optimizer, [model], "model"):
        with pytest.raises(ua.WrongObjectError, match=r"amp\.inference: expected a model"):
            amp.inference(wrong)
    with amp.inference(model):
        model(amp.to_native(np.float32(FEED)))


@pytest.mark.parametrize("given", ["no", "yes", 1, None])
def test_strict_is_true_or_false(harness, given):
    with pytest.raises(ua.ConfigError, match="strict must be true or false"):
        ua.Amp(harness.backend, "float32", strict=given)
