"""Lightning's manual optimization: clipping in the training step, several optimizers, one shared scale."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lightning")

import lightning.pytorch as pl
import probes

import unifiedamp as ua
from unifiedamp.integrations.lightning import AmpPrecision

INF = float("inf")
GROWS = ua.DynamicLossScale(initial_scale=8.0, growth_interval=1)
"""The scale changes after every step."""


class Manual(pl.LightningModule):
    """Two weights, each with its optimizer; ``train`` is the training step."""

    def __init__(self, train, optimizer=torch.optim.SGD):
        super().__init__()
        self.automatic_optimization = False
        self.first, self.second = probes.Probe(), probes.Probe()
        self.train_by, self.make = train, optimizer
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.train_by(self, batch, batch_idx)
        self.seen.append([float(self.first.weight.detach()), float(self.second.weight.detach())])

    def configure_optimizers(self):
        return [self.make(each.parameters(), lr=0.125) for each in (self.first, self.second)]


def fit(module, batches, **settings):
    plugin = AmpPrecision(probes.session(**settings))
    batches = [torch.tensor(each) for each in batches]
    probes.quiet_trainer(pl, plugin).fit(module, probes.loader(batches))
    return plugin.amp


def clipped(gradient, limit):
    return gradient * min(1.0, limit / (abs(gradient) + 1e-6))


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_clipping_in_the_training_step_sees_true_gradients(algorithm):
    """Lightning #9694 and #18089."""

    def train(self, x, _):
        optimizer, _ = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.first(x))
        self.clip_gradients(optimizer, gradient_clip_val=0.5, gradient_clip_algorithm=algorithm)
        optimizer.step()

    module = Manual(train)
    fit(module, [3.0, 0.25, INF, 100.0], loss_scale=1024.0)
    weight, wanted = 1.0, []
    for gradient in (3.0, 0.25, 0.0, 100.0):
        weight -= 0.125 * clipped(gradient, 0.5)
        wanted.append(weight)
    np.testing.assert_allclose([first for first, _ in module.seen], wanted, rtol=1e-5)


def both_alternate(self, x, _):
    for optimizer, model, value in zip(self.optimizers(), (self.first, self.second), x, strict=True):
        optimizer.zero_grad()
        self.manual_backward(model(value))
        optimizer.step()


def both_together(self, x, _):
    optimizers = self.optimizers()
    for model, value in zip((self.first, self.second), x, strict=True):
        self.manual_backward(model(value))
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def both_together_clipped(self, x, _):
    optimizers = self.optimizers()
    for model, value in zip((self.first, self.second), x, strict=True):
        self.manual_backward(model(value))
    for optimizer in optimizers:
        self.clip_gradients(optimizer, gradient_clip_val=1000.0, gradient_clip_algorithm="norm")
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def toggled(self, x, _):
    for optimizer, value in zip(self.optimizers(), x, strict=True):
        self.toggle_optimizer(optimizer)
        # Each loss reaches both; the other optimizer's weight is frozen.
        self.manual_backward(self.first(value) + self.second(value))
        optimizer.step()
        optimizer.zero_grad()
        self.untoggle_optimizer(optimizer)


def with_closures(self, x, _):
    for optimizer, model, value in zip(self.optimizers(), (self.first, self.second), x, strict=True):

        def closure(optimizer=optimizer, model=model, value=value):
            optimizer.zero_grad()
            self.manual_backward(model(value))

        optimizer.step(closure=closure)


PATTERNS = (both_alternate, both_together, both_together_clipped, toggled, with_closures)


@pytest.mark.parametrize("train", PATTERNS)
@pytest.mark.parametrize("on_device", [False, True])
def test_each_optimizer_gets_true_gradients(train, on_device):
    """Also where the scale changes between the backward pass of one and its step."""
    batches = [(1.0, 2.0), (INF, 1.0), (0.5, INF), (2.0, 0.25)]
    module = Manual(train)
    options = {"backend_options": {"torch": {"scale_on_device": on_device}}}
    amp = fit(module, batches, loss_scale=GROWS, **options)
    weights, wanted = np.ones(2), []
    for batch in batches:
        weights = weights - 0.125 * np.where(np.isfinite(batch), batch, 0)
        wanted.append(weights)
    np.testing.assert_array_equal(module.seen, wanted)
    assert (amp.applied_steps, amp.skipped_steps) == (6, 2)
    assert amp.loss_scale == 8.0 * 2.0**6 / 2.0**2


@pytest.mark.parametrize("train", [both_alternate, both_together, toggled])
@pytest.mark.parametrize("policy", ["bfloat16", "float16"])
def test_each_master_weight_gets_its_gradients(train, policy):
    batches = [(2.0**-8, 2.0**-7)] * 4
    module = Manual(train)
    fit(module, batches, policy=policy, master_weights=True)
    # Each step is less than the model's 16 bits hold.
    expected = [1 - 4 * 0.125 * value for value in batches[0]]
    np.testing.assert_allclose(module.seen[-1], expected, rtol=2.0**-8)


def test_one_accumulates_while_the_other_steps():
    """The first optimizer steps after each batch and updates the scale; the second's window spans two batches."""

    def train(self, x, batch_idx):
        one, two = self.optimizers()
        self.manual_backward(self.second(x[1]))
        self.manual_backward(self.first(x[0]))
        one.step()
        one.zero_grad()
        if batch_idx % 2:
            two.step()
            two.zero_grad()

    batches = [(1.0, 1.0), (INF, 0.5), (1.0, 0.25), (1.0, 2.0)]
    module = Manual(train)
    fit(module, batches, loss_scale=GROWS)
    assert [two for _, two in module.seen] == [1.0, 1 - 1.5 / 8, 1 - 1.5 / 8, 1 - 3.75 / 8]
    assert [one for one, _ in module.seen] == [0.875, 0.875, 0.75, 0.625]


def test_a_step_returns_its_result_and_holds_a_scheduler():
    results = []

    class Scheduled(Manual):
        def configure_optimizers(self):
            optimizers = super().configure_optimizers()
            return optimizers, [torch.optim.lr_scheduler.ExponentialLR(each, 0.5) for each in optimizers]

    def train(self, x, _):
        optimizer, _ = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.first(x))
        results.append(optimizer.step())
        self.lr_schedulers()[0].step()

    module = Scheduled(train)
    fit(module, [INF, 1.0, INF, 1.0], loss_scale=4.0)
    assert [result.applied for result in results] == [False, True, False, True]
    assert [first for first, _ in module.seen] == [1.0, 0.875, 0.875, 0.8125]


def test_a_loss_after_clipping_that_reaches_the_clipped_gradients_is_refused():
    def train(self, x, _):
        optimizer, _ = self.optimizers()
        self.manual_backward(self.first(x))
        self.clip_gradients(optimizer, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
        self.manual_backward(self.first(x))

    with pytest.raises(ua.StepOrderError, match="unscaled already"):
        fit(Manual(train), [1.0], loss_scale=4.0)


def test_a_raw_backward_is_refused_under_a_loss_scale():
    def train(self, x, _):
        optimizer, _ = self.optimizers()
        self.first(x).backward()
        optimizer.step()

    with pytest.raises(ua.StepOrderError, match="self.manual_backward"):
        fit(Manual(train), [1.0], loss_scale=4.0)
    module = Manual(train)
    fit(module, [1.0], policy="float32")
    assert module.seen == [[0.875, 1.0]]


def test_the_step_of_a_plain_optimizer_is_refused_under_a_loss_scale():
    def train(self, x, _):
        optimizer, _ = self.optimizers(use_pl_optimizer=False)
        self.manual_backward(self.first(x))
        optimizer.step()

    expected = r"scaled .* by self\.manual_backward\(loss\).*; call the step\(\) of self\.optimizers\(\) instead"
    with pytest.raises(ua.StepOrderError, match=expected):
        fit(Manual(train), [1.0], loss_scale=4.0)


def test_a_step_without_gradients_says_so():
    def train(self, x, _):
        one, two = self.optimizers()
        self.manual_backward(self.first(x))
        one.step()
        two.step()

    with pytest.warns(ua.errors.StepWarning, match="none of its 1 parameters received a gradient"):
        amp = fit(Manual(train), [1.0], loss_scale=4.0)
    assert amp.applied_steps == 1
