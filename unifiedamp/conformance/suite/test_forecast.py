"""The forecast counts what matrix products take and give, value by value, and leaves training as it was."""

import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.backend import rounding
from unifiedamp.backend.forecast import PLACES, SCALINGS, SHIFT
from unifiedamp.conformance.driver import compiled, probe_run, session, settled_state
from unifiedamp.conformance.optional import NotInFramework
from unifiedamp.conformance.recorded import Kept, batch, layers, mlp_run

pytestmark = pytest.mark.needs("forecast")


EXACT = (((4, 16), 2.0**-5), ((16, 2), 2.0**-60))
"""Sizes of layers, and what their whole-numbered weights are multiplied by."""


def counts_of(values):
    bits = np.abs(np.float32(values)).view(np.uint32) >> SHIFT
    return np.bincount(bits.ravel(), minlength=PLACES)


def tensors_of(weights, x):
    """The tensors of a dense model's layers in one step of mean squared error against zeros, in float64."""
    x, kept = np.float64(x), []
    for place, (weight, bias) in enumerate(weights):
        out = x @ weight + bias
        kept.append({"weight": weight, "input": x, "output": out})
        x = np.maximum(out, 0) if place < len(weights) - 1 else out
    gradient = 2 * x / x.size
    for place in reversed(range(len(weights))):
        found = kept[place]
        found |= {"gradient": gradient, "weight_gradient": found["input"].T @ gradient}
        gradient = gradient @ found["weight"].T * (found["input"] > 0)
    return kept


def test_every_value_of_a_product_is_counted(harness, form):
    """Weights, inputs, outputs and gradients of two steps; rounding may move a value over the edge of its interval."""
    weights = layers(4, 16, 2)
    amp, model, _, feed = mlp_run(harness, form, weights, loss_scale=8.0)
    with amp.forecast(steps=2) as run:
        before = harness.parameters(model)
        for seed in (1, 2):
            feed(batch(seed))
    assert run.done
    found = run.totals.layers
    assert list(found) == ["layer0", "layer1"]
    for place, tensors in enumerate(tensors_of(weights, batch(1))):
        for name, values in tensors.items():
            seen, shape = found[f"layer{place}"].tensors[name], np.shape(values)
            assert seen.counts.sum() == 2 * np.prod(shape), name
            if name == "input" and place == 0:
                np.testing.assert_array_equal(seen.counts, counts_of(batch(1)) + counts_of(batch(2)))
    assert found["layer0"].work == 2 * 8 * 4 * 16
    first = [value for name, value in before.items() if "0" in name and value.ndim == 2]
    assert found["layer0"].tensors["weight"].largest == pytest.approx(np.abs(first[0]).max(), rel=0.1)


def test_a_layer_that_is_called_twice_in_a_step_is_counted_twice(harness):
    """Its products; it has one gradient of its weight."""
    amp, model, optimizer, _ = mlp_run(harness, "eager", layers(4, 2), loss_scale=8.0)
    x, y, zeros = (amp.to_native(np.float32(each)) for each in (batch(1), batch(2), np.zeros((8, 2))))
    mean_square = harness.mean_square
    with amp.forecast(steps=1) as run:
        amp.backward(lambda: mean_square(model(x), zeros) + mean_square(model(y), zeros), optimizer)
        amp.step(optimizer)
    tensors = run.totals.layers["layer0"].tensors
    np.testing.assert_array_equal(tensors["input"].counts, counts_of(batch(1)) + counts_of(batch(2)))
    found = {name: int(tensors[name].counts.sum()) for name in ("output", "gradient", "weight_gradient")}
    assert found == {"output": 32, "gradient": 32, "weight_gradient": 8}
    assert run.totals.layers["layer0"].work == 2 * 8 * 4 * 2


@pytest.mark.parametrize("recomputed", [(), ("layer*",)], ids=["kept", "recomputed"])
def test_counts_of_one_forecast_step(harness, recomputed):
    """Bit by bit: sums of small multiples of powers of two are exact in any order, so that all frameworks agree.

    What layers compute a second time, in the backward pass, does not count.
    """
    support = harness.capabilities().tunes("checkpoint_layers")
    if recomputed and not support:
        pytest.skip(f"declared: {support.reason}")
    rng = np.random.default_rng(0)
    weights = [(rng.integers(-7, 8, size) * power, np.zeros(size[1])) for size, power in EXACT]
    x = rng.integers(-7, 8, (8, 4)) * 2.0**3
    tuning = {"checkpoint_layers": list(recomputed)} if recomputed else None
    amp, _, _, feed = mlp_run(harness, "eager", weights, loss_scale=8.0, tuning=tuning)
    with amp.forecast(steps=1) as run:
        feed(x)
    for place, tensors in enumerate(tensors_of(weights, x)):
        for name, values in tensors.items():
            seen = run.totals.layers[f"layer{place}"].tensors[name]
            assert seen.largest == np.abs(values).max(), name
            np.testing.assert_array_equal(seen.counts, counts_of(values), name)


def test_scaled_values_are_counted(harness, form):
    """Of rows and blocks, bit by bit against numpy; what a backend does not count is refused by name."""
    rng = np.random.default_rng(1)
    weights = [(rng.integers(-7, 8, size) * 2.0**-5, np.zeros(size[1])) for size in ((4, 160), (160, 2))]
    x = rng.integers(-7, 8, (8, 4)) * 2.0 ** rng.integers(-3, 3, (8, 1))
    amp, _, _, feed = mlp_run(harness, form, weights, loss_scale=8.0)
    scalings = amp.backend.forecaster.scalings
    formats = ["float8_rowwise", "float8_block128", "mxfp4", "nvfp4"]
    if set(scalings) != set(SCALINGS):
        with pytest.raises(ua.UnsupportedError, match="leave them out of formats"):
            amp.forecast(formats=formats)
        return
    with amp.forecast(steps=1, formats=formats) as run:
        feed(x)
    for place, tensors in enumerate(tensors_of(weights, x)):
        for name in ("weight", "input", "gradient"):
            matrix = tensors[name].T if name == "weight" else tensors[name]
            seen = run.totals.layers[f"layer{place}"].tensors[name].scaled
            for scaling in SCALINGS:
                wanted = rounding.scale_values(matrix, scaling, square=name == "weight")
                np.testing.assert_array_equal(seen[scaling].counts, counts_of(wanted), f"{name} {scaling}")
    assert run.result().heads()[-5:] == [*formats, "float16 loss scale"]


WIDTH, HEADS = 8, 2


def attention_tensors(projections, x):
    """The tensors of the two products of self-attention in one step of mean squared error against zeros, in float64."""
    query, key, value, output = np.float64(projections)
    split = [(x @ each).reshape(*x.shape[:2], HEADS, -1).swapaxes(1, 2) for each in (query, key, value)]
    q, k, v = split
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    attended = shares @ v
    result = attended.swapaxes(1, 2).reshape(x.shape) @ output
    gradient = (2 * result / result.size @ output.T).reshape(*x.shape[:2], HEADS, -1).swapaxes(1, 2)
    d_shares = gradient @ v.swapaxes(-1, -2)
    d_scores = shares * (d_shares - (d_shares * shares).sum(-1, keepdims=True)) / math.sqrt(q.shape[-1])
    return {
        "query": q, "key": k, "value": v, "output": attended, "gradient": gradient,
        "query_gradient": d_scores @ k, "key_gradient": d_scores.swapaxes(-1, -2) @ q,
        "value_gradient": shares.swapaxes(-1, -2) @ gradient,
    }  # fmt: skip


def attention_run(harness, form, projections, **options):
    amp = session(harness, form, **options)
    try:
        with amp.scope():
            model = harness.attention(projections, HEADS)
            optimizer = harness.sgd([model], 0.01)
    except NotInFramework as error:
        pytest.skip(str(error))
    model, optimizer = amp.prepare(model, optimizer)

    def step(x, y):
        loss = amp.backward(lambda: harness.mean_square(model(x), y), optimizer)
        amp.step(optimizer)
        return loss

    step = compiled(amp, form, step)
    return amp, lambda x: step(amp.to_native(np.float32(x)), amp.to_native(np.zeros(x.shape, np.float32)))


def test_the_products_of_attention_are_counted(harness, form):
    rng = np.random.default_rng(2)
    projections = [rng.normal(0, 0.5, (WIDTH, WIDTH)).astype(np.float32) for _ in range(4)]
    x = rng.normal(size=(3, 5, WIDTH)).astype(np.float32)
    amp, feed = attention_run(harness, form, projections, loss_scale=8.0)
    with amp.forecast(steps=1) as run:
        feed(x)
    layer = run.totals.layers["attention"]
    for name, values in attention_tensors(projections, np.float64(x)).items():
        seen = layer.tensors[name]
        assert seen.counts.sum() == values.size, name
        assert seen.largest == pytest.approx(np.abs(values).max(), rel=1e-4), name
        moved = np.abs(seen.counts - counts_of(values)).sum()
        assert moved <= 2 * max(1, values.size // 50), name  # values at the edge of an interval
    assert layer.work == 2 * 3 * 5 * 5 * WIDTH
    assert layer.float8
    found = run.result()
    assert "attention is not" in found.cell(next(each for each in found.layers if each.layer == "attention"), "float8")


def test_hurt_attention_is_overridden_as_a_whole(harness):
    """Queries that no float16 number holds: the layer and those inside it run in float32, and the policy trains."""
    projections = [np.eye(WIDTH, dtype=np.float32) * scale for scale in (2.0**18, 2.0**-18, 1, 1)]
    amp, feed = attention_run(harness, "eager", projections, loss_scale="none")
    x = np.random.default_rng(2).normal(size=(3, 5, WIDTH))
    with amp.forecast(steps=1) as run:
        feed(x)
    found = run.result().policies["float16"]
    assert "overflow" in found.hurt["attention"]
    assert dict(found.policy.layer_overrides) == {"attention": "float32", "attention.*": "float32"}
    amp.close()
    if harness.capabilities().feature("emulation"):
        amp, feed = attention_run(harness, "eager", projections, policy=found.policy.replace(emulate=True))
        assert np.isfinite(amp.to_numpy(feed(x))).all()
        assert amp.skipped_steps == 0


def test_training_is_the_same_with_a_forecast(harness, form):
    ended = []
    for counted in (False, True):
        amp, model, _, feed = mlp_run(harness, form, layers(4, 8, 2), loss_scale="dynamic")
        if counted:
            amp.forecast(steps=2)
        losses = [float(np.reshape(amp.to_numpy(feed(batch(seed))), ())) for seed in range(4)]
        ended.append((losses, harness.parameters(model), amp.state_dict()["state"]))
        amp.close()
    (losses, weights, state), (same, others, again) = ended
    assert same == pytest.approx(losses, rel=1e-5)
    assert state == again
    for name, value in weights.items():
        np.testing.assert_allclose(others[name], value, rtol=1e-5, atol=1e-6)


def test_nothing_is_left_by_a_forecast(harness):
    before = settled_state(harness)
    amp, model, _, feed = mlp_run(harness, "eager", layers(4, 4, 4), loss_scale=1.0)
    feed(batch())
    with amp.record(Kept()):
        feed(batch())
    names, attached = set(vars(model)), harness.attached(model)
    for steps in (1, 5):
        with amp.forecast(steps=steps) as run:
            for _ in range(2):
                feed(batch())
        assert run.step == min(steps, 2)
    assert set(vars(model)) == names
    assert harness.attached(model) == attached
    amp.close()
    assert harness.global_state() == before


def test_evaluation_and_dropped_steps_are_not_forecast(harness):
    amp, model, optimizer, feed = mlp_run(harness, "eager", layers(4, 4, 4), loss_scale=1.0)
    with amp.forecast(steps=1) as run:
        with amp.inference(model):
            model(amp.to_native(batch()))
        zeros = amp.to_native(np.zeros((8, 4), np.float32))
        amp.backward(lambda: harness.mean_square(model(amp.to_native(batch())), zeros), optimizer)
        amp.discard_step(optimizer)
        with amp.inference(model):
            model(amp.to_native(batch()))
        feed(batch())
    assert run.totals.layers["layer0"].tensors["input"].counts.sum() == 32


def test_evaluation_between_backward_and_step_is_not_forecast(harness):
    amp, model, optimizer, _ = mlp_run(harness, "eager", layers(4, 4, 4), loss_scale=1.0)
    x, zeros = amp.to_native(batch()), amp.to_native(np.zeros((8, 4), np.float32))
    with amp.forecast(steps=1) as run:
        amp.backward(lambda: harness.mean_square(model(x), zeros), optimizer)
        with amp.inference(model):
            model(x)
        amp.step(optimizer)
    assert {name: layer.tensors["input"].counts.sum() for name, layer in run.totals.layers.items()} == {
        "layer0": 32, "layer1": 32
    }  # fmt: skip


def test_fewer_steps_are_said_and_none_refused(harness):
    amp, _, _, feed = mlp_run(harness, "eager", layers(4, 16, 2), loss_scale=1.0)
    with amp.forecast(steps=3) as run:
        with pytest.raises(ua.StepOrderError, match="no step was counted"):
            run.result()
        feed(batch())
    found = run.result()
    assert "the run had 1 of the 3 steps asked for" in found.notes
    assert [each.layer for each in found.layers] == ["layer0", "layer1"]
    assert ua.Policy.parse(str(found.policy)) == found.policy


def test_mistakes_in_forecasts_are_told(harness):
    run = probe_run(harness, loss_scale=1.0)
    amp = run.amp
    wrong = ({"steps": 0}, {"steps": 1.5}, {"max_error": 0}, {"max_error": 2}, {"formats": ["float7"]}, {"formats": ""})
    for settings in wrong:
        with pytest.raises(ua.ConfigError, match=r"amp\.forecast"):
            amp.forecast(**settings)
    with pytest.raises(ua.StepOrderError, match="prepare"):
        session(harness, loss_scale=1.0).forecast()
    recorder = amp.record(Kept())
    with pytest.raises(ua.StepOrderError, match="already"):
        amp.forecast()
    recorder.stop()
    with amp.forecast(steps=1) as counted:
        with pytest.raises(ua.StepOrderError, match="already"):
            amp.record(Kept())
        run.feed(1.0)
    with pytest.raises(ua.StepOrderError, match="no matrix product ran"):
        counted.result()
