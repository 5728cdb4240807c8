"""Layers that are recomputed in the backward pass train as they would without, also batch norm and in low precision."""

import functools
from contextlib import nullcontext

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session
from unifiedamp.conformance.harness import load_harness
from unifiedamp.conformance.recorded import Kept

MIXED = ua.Policy.parse("mixed_bfloat16")
KEPT = {"conv": "float32", "linear": "float32"}
NAMES = ["float32", "mixed_bfloat16", "op_overrides"]

pytestmark = pytest.mark.usefixtures("recomputes")


@pytest.fixture
def recomputes(harness):
    support = harness.capabilities().tunes("checkpoint_layers")
    if not support:
        pytest.skip(f"declared: {support.reason}")


def trained(harness, form, layers, policy, region=None, **options):
    """Parameters and statistics of a convnet after some steps, by name; ``region`` is the policy of the region."""
    amp = session(harness, form, policy, tuning={"checkpoint_layers": layers} if layers else None, **options)
    with amp.scope():
        model = harness.convnet(0)
        optimizer = harness.sgd([model], 0.1, 0.5)
    model, optimizer = amp.prepare(model, optimizer)
    rng = np.random.default_rng(1)
    images = amp.to_native(harness.image_batch(rng.normal(2.0, 3.0, (8, 8, 8, 1)).astype(np.float32)))
    labels = amp.to_native(rng.integers(0, 10, 8))

    def step(images, labels):
        def loss():
            with amp.autocast(policy=region) if region else nullcontext():
                return harness.cross_entropy(model(images), labels)

        amp.backward(loss, optimizer)
        amp.step(optimizer)

    step = compiled(amp, form, step)
    for _ in range(3):
        step(images, labels)
    found = amp.master_weights(model)
    amp.close()
    return found


@functools.cache
def trained_plainly(backend, form, policy):
    """The same without recomputation, once for all layers."""
    return trained(load_harness(backend), form, (), policy)


@pytest.mark.needs("float32_weights")
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", MIXED.replace(op_overrides=KEPT)], ids=NAMES)
@pytest.mark.parametrize("layers", [["norm"], ["conv", "norm"], ["head"]], ids="-".join)
def test_training_is_the_same(harness, form, layers, policy):
    """Statistics move once a step, and the second pass is in the mode and the precision of the first."""
    if not isinstance(policy, str) and not harness.capabilities().feature("op_overrides"):
        pytest.skip("the backend declares no op_overrides")
    plain, again = trained_plainly(harness.backend, form, policy), trained(harness, form, layers, policy)
    # A compiler may fuse the second pass otherwise, and so round otherwise.
    rounding = 0.0 if form.startswith("eager") else 1e-6 if policy == "float32" else 2e-2
    for name, value in plain.items():
        np.testing.assert_allclose(again[name], value, rtol=rounding, atol=rounding, err_msg=name)


def test_a_region_without_autocast(harness):
    """The second pass is in float32 as the first: numbers that bfloat16 rounds."""
    fine, found = 1.0 + 2.0**-10, []
    for layers in ([], ["layer*"]):
        amp = session(harness, policy="mixed_bfloat16", tuning={"checkpoint_layers": layers} if layers else None)
        weights = [(np.full((1, 1), fine, np.float32), np.zeros(1, np.float32)) for _ in range(2)]
        with amp.scope():
            model = harness.mlp(weights)
            optimizer = harness.sgd([model], 0.5)
        model, optimizer = amp.prepare(model, optimizer)
        x, y = (amp.to_native(np.float32([[value]])) for value in (fine, 0.0))

        def loss(amp=amp, model=model, x=x, y=y):
            with amp.autocast(enabled=False):
                return harness.mean_square(model(x), y)

        amp.backward(loss, optimizer)
        amp.step(optimizer)
        found.append({name: float(np.ravel(value)[0]) for name, value in harness.parameters(model).items()})
    assert found[0] == found[1]
    first = next(value for name, value in found[1].items() if "0" in name and "bias" not in name)
    assert first == pytest.approx(fine - 0.5 * 2 * fine**3 * fine * fine, abs=2.0**-12)


@pytest.mark.needs("float32_weights", "op_overrides", "policy_schedule")
def test_a_schedule_and_its_overrides_hold_in_the_second_pass(harness):
    schedule = {0: str(MIXED), 1: str(MIXED.replace(op_overrides=KEPT))}
    plain, again = [trained(harness, "eager", layers, None, schedule=schedule) for layers in ((), ["conv", "norm"])]
    for name, value in plain.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)


@pytest.mark.needs("float32_weights", "op_overrides")
@pytest.mark.parametrize("own", [{}, KEPT], ids=["plain", "op_overrides"])
def test_a_regions_overrides_hold_in_the_second_pass(harness, own):
    region = MIXED.replace(op_overrides={} if own else KEPT)
    policy = MIXED.replace(op_overrides=own)
    try:
        plain, again = [trained(harness, "eager", layers, policy, region) for layers in ((), ["conv", "norm"])]
    except (ua.UnsupportedError, ua.PolicyNotSupportedError) as refused:
        pytest.skip(f"refused: {refused}")
    for name, value in plain.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)


@pytest.mark.needs("float32_weights")
def test_a_layer_of_two_inputs(harness):
    """Gradients reach both through the second pass."""
    rng, found = np.random.default_rng(2), []
    weights = [rng.normal(size=(4, 3)).astype(np.float32) for _ in range(2)]
    rows = rng.normal(size=(5, 4)).astype(np.float32)
    for layers in ((), ("join",)):
        amp = session(harness, tuning={"checkpoint_layers": layers} if layers else None)
        with amp.scope():
            model = harness.joined(weights)
            optimizer = harness.sgd([model], 0.25)
        model, optimizer = amp.prepare(model, optimizer)
        x, y = amp.to_native(rows), amp.to_native(np.zeros((5, 3), np.float32))
        amp.backward(lambda model=model, x=x, y=y: harness.mean_square(model(x), y), optimizer)
        amp.step(optimizer)
        found.append(amp.master_weights(model))
        amp.close()
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-6, atol=1e-7, err_msg=name)


@pytest.mark.needs("recording")
def test_what_is_recomputed_is_recorded_once(harness):
    """The layers inside of one that is recomputed run twice, and are one row each."""
    found = []
    for layers in ((), ("block",)):
        amp = session(harness, tuning={"checkpoint_layers": layers} if layers else None)
        if not amp.backend.recorder.compares:
            pytest.skip("this backend records no sketches of tensors")
        with amp.scope():
            model = harness.nested_norm(8)
            optimizer = harness.sgd([model], 0.25)
        model, optimizer = amp.prepare(model, optimizer)
        x, y = (amp.to_native(np.full((4, 8), value, np.float32)) for value in (1.0, 0.0))

        def step(x, y, amp=amp, model=model, optimizer=optimizer):
            amp.backward(lambda: harness.mean_square(model(x), y), optimizer)
            amp.step(optimizer)

        kept = Kept()
        with amp.record(kept, every=1, compare=True):
            step(x, y)
        (record,) = kept.of("step")
        found.append([(row["layer"], row["place"]) for row in record["compare"]["layers"]])
    assert len(found[0]) > 2
    assert found[0] == found[1]
