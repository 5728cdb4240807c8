"""Layers frozen after ``amp.prepare`` stay as they are, to the last bit, and train again once they are unfrozen."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session
from unifiedamp.policy import Policy

FREEZING = [(), ("layer0",), ("layer1",), ()]
"""What is frozen, two steps each."""
SCALE = ua.DynamicLossScale(initial_scale=64.0, growth_interval=3)
LR = 0.01


class Net:
    """``w1 * (w0 * x + b0) + b1`` by the framework, all of it positive, and beside it in float64."""

    def __init__(self, harness):
        self.harness = harness
        pairs = [(np.float32([[weight]]), np.float32([bias])) for weight, bias in ((1.0, 0.5), (0.75, 0.25))]
        self.model = harness.mlp(pairs)
        self.values = {"layer0": [1.0, 0.5], "layer1": [0.75, 0.25]}
        self.frozen = ()

    def freeze(self, names):
        for name in self.values:
            if (name in names) != (name in self.frozen):
                self.harness.set_trainable(self.model, name, name not in names)
        self.frozen = names

    def train(self, x, y):
        """One step of plain SGD on ``(out - y) ** 2`` in float64."""
        (w0, b0), (w1, b1) = self.values["layer0"], self.values["layer1"]
        hidden = w0 * x + b0
        d_out = 2 * (w1 * hidden + b1 - y)
        gradients = {"layer0": [d_out * w1 * x, d_out * w1], "layer1": [d_out * hidden, d_out]}
        for name, values in self.values.items():
            if name not in self.frozen:
                self.values[name] = [v - LR * g for v, g in zip(values, gradients[name], strict=True)]

    def read(self):
        """Return layer → [weight, bias] as the framework has them; everything is trainable afterwards."""
        self.freeze(())
        found = {name: [None, None] for name in self.values}
        for name, value in self.harness.parameters(self.model).items():
            layer = next(known for known in found if known in name)
            found[layer]["bias" in name] = float(np.ravel(value)[0])
        return found


def prepare(harness, form, nets, optimizer="sgd", **options):
    amp = session(harness, form, **{"policy": "float32", "loss_scale": SCALE} | options)
    optimizers = [getattr(harness, optimizer)([net.model], LR) for net in nets]
    prepared = amp.prepare(*[net.model for net in nets], *optimizers)
    for net, model in zip(nets, prepared, strict=False):
        net.model = model
    return amp, prepared[len(nets) :]


def stepping(harness, form, amp, nets, optimizers):
    def step(x, y):
        for net, optimizer in zip(nets, optimizers, strict=True):
            amp.backward(lambda: harness.mean_square(net.model(x), y), optimizer)  # noqa: B023
            amp.step(optimizer)

    run = compiled(amp, form, step)
    return lambda x, y: run(amp.to_native(np.float32([[x]])), amp.to_native(np.float32([[y]])))


def test_frozen_layers_stay_and_unfrozen_ones_train(harness, form):
    net = Net(harness)
    amp, optimizers = prepare(harness, form, [net])
    step = stepping(harness, form, amp, [net], optimizers)
    before = net.read()
    for frozen in FREEZING:
        net.freeze(frozen)
        for y in (0.0, 0.5):
            step(1.5, y)
            net.train(1.5, y)
        after = net.read()
        for layer, values in net.values.items():
            assert after[layer] == pytest.approx(values, rel=1e-5)
            assert (after[layer] == before[layer]) == (layer in frozen)
        before = after
    assert (amp.applied_steps, amp.skipped_steps) == (2 * len(FREEZING), 0)


@pytest.mark.filterwarnings("ignore::unifiedamp.StepWarning")
def test_a_model_that_is_frozen_whole(harness):
    """Its loss is refused or gives a step without gradients; it trains again once a layer is unfrozen."""
    net = Net(harness)
    amp, optimizers = prepare(harness, "eager", [net])
    step = stepping(harness, "eager", amp, [net], optimizers)
    before = net.read()
    for frozen in (("layer0", "layer1"), ("layer0",)):
        net.freeze(frozen)
        with contextlib.suppress(ua.LossError):
            step(1.5, 0.5)
        net.train(1.5, 0.5)
        after = net.read()
        assert after["layer0"] == before["layer0"]
        assert after == {layer: pytest.approx(values, rel=1e-5) for layer, values in net.values.items()}
        assert amp.applied_steps == (len(frozen) == 1)
    assert (amp.skipped_steps, amp.loss_scale) == (0, 64.0)


def test_a_frozen_layers_moments_rest_too(harness, form):
    """Adam would go on by momentum alone where it is given a gradient of zero."""
    net = Net(harness)
    amp, optimizers = prepare(harness, form, [net], "adam")
    step = stepping(harness, form, amp, [net], optimizers)
    step(1.5, 0.0)
    before = net.read()
    net.freeze(("layer0",))
    step(1.5, 0.0)
    after = net.read()
    assert after["layer0"] == before["layer0"]
    assert after["layer1"] != before["layer1"]


@pytest.mark.parametrize("frozen", ["layer0", "layer1"])
def test_frozen_layers_are_in_no_norm(harness, frozen):
    """Nor among the gradients: what is clipped is what trains."""
    net = Net(harness)
    amp, (optimizer,) = prepare(harness, "eager", [net])
    x, y = (amp.to_native(np.float32([[value]])) for value in (1.5, 0.0))
    net.freeze((frozen,))
    amp.backward(lambda: harness.mean_square(net.model(x), y), optimizer)
    norm = float(np.ravel(amp.to_numpy(amp.clip_grad_norm(optimizer, 0.25)))[0])
    assert all(frozen not in name for name in amp.gradients(optimizer))
    assert len(amp.gradients(optimizer)) == 2
    assert amp.step(optimizer).applied
    before = {layer: list(values) for layer, values in net.values.items()}
    net.train(1.5, 0.0)
    moves = [b - a for name in before for a, b in zip(net.values[name], before[name], strict=True)]
    assert norm == pytest.approx(np.linalg.norm(moves) / LR, rel=1e-5)
    factor = 0.25 / norm
    expected = {n: [b - factor * (b - a) for a, b in zip(net.values[n], before[n], strict=True)] for n in before}
    for layer, values in net.read().items():
        assert values == pytest.approx(expected[layer], rel=1e-5)


@pytest.mark.parametrize("scale", ["none", 4.0])
@pytest.mark.parametrize("grouped", [False, True], ids=["together", "groups"])
@pytest.mark.parametrize("frozen", ["layer0", "layer1"])
def test_the_rest_of_an_optimizer_trains(harness, form, frozen, grouped, scale):
    """Also where whole parameter groups are frozen, the first or the last ones, and without a scale."""
    net = Net(harness)
    optimizer = harness.grouped_sgd(net.model, [LR] * 4) if grouped else harness.sgd([net.model], LR)
    amp = session(harness, form, loss_scale=scale)
    net.model, optimizer = amp.prepare(net.model, optimizer)
    step = stepping(harness, form, amp, [net], [optimizer])
    for names in ((frozen,), (), (frozen,)):
        net.freeze(names)
        step(1.5, 0.5)
        net.train(1.5, 0.5)
        for layer, values in net.read().items():
            assert values == pytest.approx(net.values[layer], rel=1e-5)
    assert (amp.applied_steps, amp.skipped_steps) == (3, 0)


@pytest.mark.needs("several_optimizers")
def test_beside_other_optimizers(harness, form):
    nets = [Net(harness), Net(harness)]
    amp, optimizers = prepare(harness, form, nets)
    step = stepping(harness, form, amp, nets, optimizers)
    for first, second in zip(FREEZING, reversed(FREEZING), strict=True):
        nets[0].freeze(first)
        nets[1].freeze(second)
        step(1.5, 0.5)
        for net in nets:
            net.train(1.5, 0.5)
            for layer, values in net.read().items():
                assert values == pytest.approx(net.values[layer], rel=1e-5)


@pytest.mark.needs("accumulation")
def test_windows_leave_frozen_layers_out(harness, form):
    net = Net(harness)
    amp, optimizers = prepare(harness, form, [net], accumulate_steps=2)
    step = stepping(harness, form, amp, [net], optimizers)
    for frozen in FREEZING:
        net.freeze(frozen)
        for _ in range(2):
            step(1.5, 0.5)
        net.train(1.5, 0.5)
        for layer, values in net.read().items():
            assert values == pytest.approx(net.values[layer], rel=1e-5)


@pytest.mark.needs("accumulation")
@pytest.mark.parametrize("frozen", ["layer0", "layer1"])
def test_a_layer_frozen_inside_a_window_stays(harness, form, frozen):
    """Though the micro-batches before had gradients for it; the others get the mean of all."""
    net = Net(harness)
    amp, optimizers = prepare(harness, form, [net], accumulate_steps=2)
    step = stepping(harness, form, amp, [net], optimizers)
    for names in ((), (frozen,)):
        net.freeze(names)
        step(1.5, 0.5)
    net.train(1.5, 0.5)
    net.freeze(())
    for layer, values in net.read().items():
        assert values == pytest.approx(net.values[layer], rel=1e-5)
    for _ in range(2):
        step(1.5, 0.5)
    net.train(1.5, 0.5)
    for layer, values in net.read().items():
        assert values == pytest.approx(net.values[layer], rel=1e-5)


@pytest.mark.needs("accumulation")
@pytest.mark.parametrize("frozen", ["layer0", "layer1"])
def test_a_layer_frozen_inside_a_window_is_in_no_norm(harness, frozen):
    """Nor among the gradients, though the micro-batch before had one for it."""
    net = Net(harness)
    amp, (optimizer,) = prepare(harness, "eager", [net], accumulate_steps=2)
    x, y = (amp.to_native(np.float32([[value]])) for value in (1.5, 0.0))
    for names in ((), (frozen,)):
        net.freeze(names)
        amp.backward(lambda: harness.mean_square(net.model(x), y), optimizer)
        if not names:
            amp.step(optimizer)
    norm = float(np.ravel(amp.to_numpy(amp.clip_grad_norm(optimizer, 1e6)))[0])
    assert [name for name in amp.gradients(optimizer) if frozen in name] == []
    before = {layer: list(values) for layer, values in net.values.items()}
    net.train(1.5, 0.0)
    moves = [b - a for name in before for a, b in zip(net.values[name], before[name], strict=True)]
    assert norm == pytest.approx(np.linalg.norm(moves) / LR, rel=1e-5)


@pytest.mark.needs("master_weights", "accumulation")
@pytest.mark.parametrize("frozen", ["layer0", "layer1"])
def test_a_layer_frozen_inside_a_window_stays_with_its_masters(harness, frozen):
    policy = harness.pure_policies["bfloat16"]
    policy = replace(Policy.parse(policy) if isinstance(policy, str) else policy, output_dtype="float32")
    with session(harness, policy=policy, master_weights=True).scope():
        net = Net(harness)
    amp, optimizers = prepare(harness, "eager", [net], policy=policy, master_weights=True, accumulate_steps=2)
    step = stepping(harness, "eager", amp, [net], optimizers)
    before = amp.master_weights(net.model)
    for names in ((), (frozen,)):
        net.freeze(names)
        step(1.5, -8.0)
    net.freeze(())
    for name, value in amp.master_weights(net.model).items():
        assert (value == before[name]).all() == (frozen in name), name


@pytest.mark.needs("master_weights")
def test_with_master_weights(harness, form):
    policy = harness.pure_policies["bfloat16"]
    policy = replace(Policy.parse(policy) if isinstance(policy, str) else policy, output_dtype="float32")
    with session(harness, policy=policy, master_weights=True).scope():
        net = Net(harness)
    amp, optimizers = prepare(harness, form, [net], policy=policy, master_weights=True)
    step = stepping(harness, form, amp, [net], optimizers)
    before = net.read()
    for frozen in FREEZING:
        net.freeze(frozen)
        for _ in range(4):
            step(1.5, -8.0)
        after = net.read()
        for layer in net.values:
            assert (after[layer] == before[layer]) == (layer in frozen)
        before = after


@pytest.mark.needs("master_weights")
@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
def test_masters_of_a_layer_that_was_frozen_before(harness, policy):
    """Before ``amp.prepare``; once it is unfrozen, updates survive that 16 bits would lose."""
    pure = harness.pure_policies[policy]
    pure = replace(Policy.parse(pure) if isinstance(pure, str) else pure, output_dtype="float32")
    amp = session(harness, policy=pure, master_weights=True, loss_scale=4.0)
    with amp.scope():
        net = Net(harness)
        optimizer = harness.sgd([net.model], 2.0**-13)
    net.freeze(("layer0",))
    net.model, optimizer = amp.prepare(net.model, optimizer)
    x, y = (amp.to_native(np.float32([[value]])) for value in (1.0, 0.0))
    try:
        for frozen in (("layer0",), (), ()):
            net.freeze(frozen)
            amp.backward(lambda: harness.mean_square(net.model(x), y), optimizer)
            amp.step(optimizer)
    except ua.PrepareError as refusal:
        pytest.skip(f"refused: {refusal}")
    found = {name: float(np.ravel(v)[0]) for name, v in amp.master_weights(net.model).items() if "layer0" in name}
    assert len(found) == 2
    for name, value in found.items():
        begun = 0.5 if "bias" in name else 1.0
        assert begun - 2.0**-9 < value < begun - 2.0**-13
