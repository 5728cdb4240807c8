"""``unifiedamp diff`` over one context and two, and over two runs on two contexts."""

import contextlib
import functools
import itertools

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.recorded import Kept
from unifiedamp.recording.difference import difference
from unifiedamp_mxnet.mxnet_api import from_numpy, gluon, mx

CONTEXTS = [mx.cpu(0), mx.cpu(1)]
SIZES = (6, 8, 2)
BATCHES = [np.random.default_rng(seed).normal(size=(8, 6)).astype(np.float32) for seed in range(3)]
FORMS = pytest.mark.parametrize("compiled", [False, True])


class Spoiled(mx.autograd.Function):
    """Hands values on as they are, and their gradients times 1.5."""

    def forward(self, x):
        return x.copy()

    def backward(self, gradient):
        return gradient * 1.5


def network(contexts):
    model = gluon.nn.HybridSequential()
    for place, (inputs, outputs) in enumerate(itertools.pairwise(SIZES)):
        model.add(gluon.nn.Dense(outputs, in_units=inputs, activation=None if place else "relu"))
    model.initialize(ctx=contexts)
    rng = np.random.default_rng(0)
    for param in (each for layer in (model[0], model[1]) for each in (layer.weight, layer.bias)):
        param.set_data(from_numpy(rng.normal(0, 0.5, param.shape).astype(np.float32), CONTEXTS[0]))
    return model


class WrongSum:
    """The Trainer's kvstore, whose sum of one parameter's gradients is ``factor`` times what it should be."""

    def __init__(self, trainer, param, factor):
        self._native, self._key, self._factor = trainer._kvstore, trainer._params.index(param), factor

    def __getattr__(self, name):
        return getattr(self._native, name)

    def pushpull(self, key, values, *args, **kwargs):
        self._native.pushpull(key, values, *args, **kwargs)
        for each in values if key == self._key else ():
            each *= self._factor


@functools.cache
def recorded(contexts=2, case="plain", compiled=False, policy="float32", **options):
    """Record three steps on the whole batch, or on every second row of it."""
    here = CONTEXTS[:contexts]
    model = network(here)
    amp = ua.Amp("mxnet", policy, device="cpu", loss_scale=8.0, **options)
    rate = 0.2 if case == "rate" else 0.1
    trainer = gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": rate}, kvstore="device")
    model, trainer = amp.prepare(model, trainer)

    def losses(rows, spoiled):
        outputs = [model(each) for each in rows]
        outputs = [Spoiled()(each) if place in spoiled else each for place, each in enumerate(outputs)]
        return [(each.astype("float32") ** 2).mean() / len(rows) for each in outputs]

    def step(rows, spoiled=()):
        with amp.autocast():
            found = losses(rows, spoiled)
        with amp.scale_loss(found, trainer) as scaled:
            scaled.backward()
        return amp.step(trainer)

    run, kept = amp.compile(step) if compiled else step, Kept()
    with contextlib.closing(amp), amp.record(kept, every=1, compare=True):
        for number, batch in enumerate(BATCHES, 1):
            rows = [batch[place::contexts] for place in range(contexts)] if case != "idle" else [batch]
            if case == "data" and number == 2:
                rows[-1] = rows[-1] + np.float32(0.1)
            if case in SUMS and number == 2:
                trainer._kvstore = WrongSum(trainer, model[1].weight, SUMS[case])
            spoiled = (1,) if case == "gradient" and number == 2 else ()
            run([from_numpy(each, context) for each, context in zip(rows, here, strict=False)], spoiled)
    return kept.recording()


SUMS = {"reduction": 1.5, "overflow": np.inf}
PLANTED = {
    "plain": None,
    "rate": (1, "update", "0.weight", ""),
    "data": (2, "data", "", "on rank 1"),
    "gradient": (2, "backward", "1.", "on rank 1"),
    "reduction": (2, "reduction", "1.weight", ""),
}


def recorded_by_torch(rate=0.1):
    """Record the same three steps of the same model in another framework, on the whole batch."""
    torch = pytest.importorskip("torch")
    linear, rng = torch.nn.Linear, np.random.default_rng(0)
    model = torch.nn.Sequential(linear(*SIZES[:2]), torch.nn.ReLU(), linear(*SIZES[1:]))
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.from_numpy(rng.normal(0, 0.5, tuple(param.shape)).astype(np.float32)))
    amp = ua.Amp("torch", "float32", device="cpu", loss_scale=8.0)
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=rate))
    kept = Kept()
    with contextlib.closing(amp), amp.record(kept, every=1, compare=True):
        for batch in BATCHES:
            amp.backward(lambda x=batch: model(torch.from_numpy(x)).square().mean(), optimizer)
            amp.step(optimizer)
    return kept.recording()


def check(found, case):
    first, expected = found.first, PLANTED[case]
    if expected is None:
        assert first is None
        return None
    step, part, name, note = expected
    assert (first.step, first.part) == (step, part)
    assert first.name.startswith(name)
    return note


@FORMS
@pytest.mark.parametrize("case", PLANTED)
def test_two_contexts_and_two_contexts(case, compiled):
    found = difference(recorded(), recorded(case=case, compiled=compiled))
    note = check(found, case)
    assert found.first is None or note in found.first.note
    assert not any("ranks" in line for line in found.compared)


@FORMS
@pytest.mark.parametrize("case", PLANTED)
def test_one_context_and_two(case, compiled):
    found = difference(recorded(1), recorded(case=case, compiled=compiled))
    check(found, case)
    assert found.compared[0 if not compiled else 1].startswith("1 and 2 ranks: layers by norms and sums")
    if case == "gradient":
        assert found.first.note == "in the sum of the ranks' own gradients"


def test_a_lower_precision_over_contexts():
    assert difference(recorded(1), recorded(policy="mixed_bfloat16")).first is None
    found = difference(recorded(1), recorded(policy="mixed_bfloat16", case="rate"))
    assert (found.first.step, found.first.part) == (1, "update")


def test_losses_of_contexts_are_added():
    one, two = recorded(1), recorded()
    for ours, theirs in zip(one.steps, two.steps, strict=True):
        assert theirs["loss"] == pytest.approx(ours["loss"], rel=1e-5)
        assert sum(theirs["ranks"]["losses"].values()) == pytest.approx(ours["loss"], rel=1e-5)
        for name, each in ours["compare"]["gradients"].items():
            after = theirs["compare"]["gradients"][name]["sketch"]
            np.testing.assert_allclose(after, each["sketch"], rtol=1e-4, atol=1e-5)


def test_the_gradient_whose_sum_overflowed_is_named():
    seen = recorded(case="overflow").steps[1]
    assert seen["applied"] is False
    assert seen["ranks"]["first"] == {"during": "reduction", "ranks": [], "name": "1.weight"}


def test_a_context_without_a_batch():
    """What the others computed is the whole batch."""
    found = difference(recorded(1), recorded(case="idle"))
    assert (found.first, found.steps) == (None, 3)
    found = difference(recorded(1, case="rate"), recorded(case="idle"))
    assert (found.first.step, found.first.part) == (1, "update")


def test_two_contexts_and_another_framework():
    """Layers by the norms of the whole batch, gradients after the sum."""
    other = recorded_by_torch()
    for runs in ((other, recorded()), (recorded(), other)):
        found = difference(*runs)
        assert (found.first, found.steps) == (None, 3)
        assert any("layers by norms over the whole batch" in line for line in found.compared)
    for case, expected in (("rate", (1, "update")), ("gradient", (2, "backward")), ("reduction", (2, "backward"))):
        found = difference(other, recorded(case=case))
        assert (found.first.step, found.first.part) == expected
    found = difference(recorded_by_torch(0.2), recorded())
    assert (found.first.step, found.first.part) == (1, "update")
