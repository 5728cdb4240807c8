"""``amp.record(compare=True)``: ``unifiedamp diff`` names where two runs diverge, on one framework or two."""

import contextlib
import functools

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.backend.sketch import sketch_of
from unifiedamp.conformance.driver import compiled, session
from unifiedamp.conformance.harness import load_harness
from unifiedamp.conformance.plugin import declared
from unifiedamp.conformance.recorded import Kept, batch, layers
from unifiedamp.recording.difference import difference
from unifiedamp.recording.nonfinite_origin import layer_of

pytestmark = pytest.mark.needs("recording")

WEIGHTS, WIDE = layers(4, 8, 6, 2), layers(4, 32, 32, 2)
STEPS = 3


def recorded(
    harness, form="eager", *, policy="float32", lr=0.05, momentum=0.9, optimizer="sgd", wrong=None, data=None,
    labels=None, clip=None, written=None, gradient=None, factor=1.0, scale=8.0, every=1, weights=WEIGHTS,
):  # fmt: skip
    """Record three steps of a model of three layers; each option plants one divergence.

    Args:
        harness, form: the test's.
        policy, lr, momentum, optimizer, clip, scale, every: of the run.
        wrong: layer whose bias begins with another value.
        data, labels: the step from which batches, or targets, are others.
        written: the layer whose weights are changed by hand before the last step.
        gradient: the layer whose gradients are changed by hand in the second step, and by which factor.
        factor: the loss is multiplied by it.
        weights: of the layers.
    """
    amp = session(harness, form, policy=policy, loss_scale=scale)
    if not amp.backend.recorder.compares:
        pytest.skip("this backend records no sketches of tensors")
    with amp.scope():
        model = harness.mlp([(w, b + np.float32(0.25 * (f"layer{i}" == wrong))) for i, (w, b) in enumerate(weights)])
        native = harness.sgd([model], lr, momentum) if optimizer == "sgd" else harness.adam([model], lr)
    model, native = amp.prepare(model, native)

    def step(x, y, edited=None):
        loss = amp.backward(lambda: harness.mean_square(model(x), y) * factor, native)
        if edited:
            found = {name: amp.to_numpy(each) for name, each in amp.gradients(native).items()}
            own = {name: each * edited[1] for name, each in found.items() if layer_of(name) == edited[0]}
            harness.set_gradients(amp, native, own)
        if clip is not None:
            amp.clip_grad_norm(native, clip)
        amp.step(native)
        return loss

    step, kept = compiled(amp, form, step), Kept()
    with amp.record(kept, every=every, compare=True):
        for number in range(1, STEPS + 1):
            if written and number == STEPS:
                weights = amp.master_weights(model)
                changed = {name: 1.5 * each for name, each in weights.items() if layer_of(name) == written}
                amp.load_master_weights(model, {**weights, **changed})
            x = batch(number + 10 * (data is not None and number >= data))
            y = np.full((8, 2), number + (labels is not None and number >= labels), np.float32)
            step(amp.to_native(x), amp.to_native(y), *((gradient,) if gradient and number == 2 else ()))
    amp.close()
    return kept.recording()


@functools.cache
def eager(backend, name=None, policy="float32"):
    """Return an eager run with a planted divergence, or a plain one."""
    options = {} if name is None else PLANTED[name][0]
    return recorded(load_harness(backend), **{"policy": policy, **options})


PLANTED = {
    "learning rate": ({"lr": 0.06}, (1, "update", "layer0")),
    "momentum": ({"momentum": 0.8}, (2, "update", "layer0")),
    "another optimizer": ({"optimizer": "adam"}, (1, "update", "layer0")),
    "clipped gradients": ({"clip": 0.1}, (1, "update", "layer0")),
    "initial weight": ({"wrong": "layer1"}, (1, "initial weights", "layer1")),
    "data": ({"data": 2}, (2, "data", "")),
    "labels": ({"labels": 3}, (3, "forward", "the loss")),
    "another loss": ({"factor": 2.0}, (1, "forward", "the loss")),
    "a gradient": ({"gradient": ("layer1", 2.0)}, (2, "backward", "layer1")),
    "an overflow": ({"gradient": ("layer2", np.float32("inf"))}, (2, "backward", "layer2")),
    "a written weight": ({"written": "layer2"}, (3, "between recorded steps", "layer2")),
}  # fmt: skip


def where(found):
    first = found.first
    return (
        None if first is None else (first.step, first.part, first.name if " " in first.name else layer_or_name(first))
    )


def layer_or_name(first):
    return first.name if first.part in ("data", "forward") else layer_of(first.name)


@pytest.mark.filterwarnings("ignore::unifiedamp.AmpWarning")
@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_divergence_is_named(harness, name):
    found = difference(eager(harness.backend), eager(harness.backend, name))
    assert where(found) == PLANTED[name][1]


def test_equal_runs_are_alike_in_every_form(harness, form):
    """A run in a form is that of eager steps with the same settings; a weight that was written is named there too."""
    run = recorded(harness, form, lr=0.06, written="layer1")
    assert where(difference(eager(harness.backend), run)) == (1, "update", "layer0")
    found = difference(eager(harness.backend, "learning rate"), run)
    assert where(found) == (STEPS, "between recorded steps", "layer1")
    if form.startswith("eager"):
        found = difference(recorded(harness, form), recorded(harness, form), ulp=0.0)
        assert (where(found), found.steps, found.settings, found.compared) == (None, STEPS, [], [])
    else:
        assert any("recorded steps ran" in line for line in found.compared)


def test_a_lower_precision_is_alike_up_to_its_rounding(harness):
    """And what is planted beside it is named: the bounds are those of the format."""
    policy = harness.scaling_policies[-1]
    found = difference(eager(harness.backend), eager(harness.backend, policy=policy))
    assert (where(found), found.steps) == (None, STEPS)
    assert any(policy.removeprefix("mixed_") in line for line in found.compared)
    for name in ("learning rate", "initial weight", "labels", "a gradient", "a written weight"):
        found = difference(eager(harness.backend), eager(harness.backend, name, policy))
        assert where(found) == PLANTED[name][1], name


@pytest.mark.needs("emulation")
@pytest.mark.filterwarnings("ignore::unifiedamp.AmpWarning")
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float8;recipe=rowwise", "mixed_nvfp4", "float16"])
def test_an_emulated_policy_is_alike_up_to_its_rounding(harness, policy):
    """To float32, and where the policy runs natively to that; what is planted beside it is named."""
    dtypes = {"output_dtype": "float32"} if policy == "float16" else {}
    emulated = ua.Policy.parse(f"{policy};emulate=true").replace(**dtypes)
    scale = "none" if policy == "float16" else 8.0
    run = functools.partial(recorded, harness, momentum=0.0, weights=WIDE, scale=scale)
    low = run(policy=emulated)
    compared = [run()]
    with contextlib.suppress(ua.PolicyNotSupportedError):
        compared.append(run(policy=emulated.replace(emulate=False)))
    for plain in compared:
        found = difference(plain, low)
        assert (where(found), found.steps) == (None, STEPS), found.first
    assert any("emulate=true" in other for _, _, other in difference(compared[0], low).settings)
    for name in ("initial weight", "a written weight"):
        found = difference(compared[0], run(policy=emulated, **PLANTED[name][0]))
        assert where(found) == PLANTED[name][1], name


@pytest.mark.needs("layer_overrides")
def test_a_layer_in_another_dtype_is_named(harness):
    compute = harness.scaling_policies[-1].removeprefix("mixed_")
    policies = [ua.Policy(compute_dtype=compute, layer_overrides=each) for each in ({}, {"layer1": "float32"})]
    found = difference(*(recorded(harness, policy=policy) for policy in policies))
    if any("emulate=true" in own for _, own, _ in found.settings):
        pytest.skip("emulated values are recorded in the dtype of the tensors that hold them")
    assert where(found) == (1, "forward", "layer1")
    assert found.first.note == f"computed in {compute} and in float32"


def test_sketches_are_those_of_float64(harness):
    """Against numpy: of the batch, of the first layer's gradients and of the weights' updates."""
    run = eager(harness.backend)
    compared = run.steps[0]["compare"]
    first = compared["layers"][0]
    expected = sketch_of(batch(1), batch=True)
    for part, values in (("sketch", expected.values), ("ordered", expected.ordered), ("batch", expected.batch)):
        np.testing.assert_allclose(first[part], values, rtol=1e-5, atol=1e-4)
    assert first["norm"] == pytest.approx(expected.norm, rel=1e-6)
    for name, gradient in compared["gradients"].items():
        update = compared["update"][name]
        for part in ("sketch", "ordered"):  # plain SGD in the first step, whose order is the other way round
            size = np.abs(np.float64(gradient[part]) * 0.05)
            if part == "sketch":
                np.testing.assert_allclose(np.abs(update[part]), size, rtol=1e-3, atol=1e-6)
        assert update["norm"] == pytest.approx(0.05 * gradient["norm"], rel=1e-4)
        assert tuple(gradient["shape"]) == tuple(compared["before"][name]["shape"])


@pytest.mark.filterwarnings("ignore::unifiedamp.AmpWarning")
def test_runs_of_two_frameworks(harness, peer):
    """Whatever their layouts and names: alike, or with the planted divergence."""
    if not declared(peer).feature("recording"):
        pytest.skip(f"{peer} records nothing")
    for name in (None, *PLANTED):
        found = difference(eager(harness.backend), eager(peer, name))
        assert (where(found), found.steps) == (name and PLANTED[name][1], STEPS), name
