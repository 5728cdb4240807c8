"""Optimizers that a loop makes later than others, in Fabric and Accelerate: for another model, or for the same one."""

import pytest

torch = pytest.importorskip("torch")

import probes

import unifiedamp as ua

HOSTS = [host for host in ("fabric", "accelerate") if host in probes.HOSTS]
POLICIES = {
    "float32": {"loss_scale": ua.DynamicLossScale(4.0, growth_interval=2)},
    "bfloat16": {"master_weights": True},
}


class Loop:
    """The calls of both: ``model`` and ``optimizer`` prepare one, ``step`` trains."""

    def __init__(self, host, policy):
        amp = probes.session(policy, **POLICIES[policy])
        if host == "fabric":
            from lightning.fabric import Fabric

            from unifiedamp.integrations.fabric import AmpPrecision

            own = Fabric(accelerator="cpu", devices=1, plugins=[AmpPrecision(amp)])
            self.model, self.optimizer = own.setup_module, own.setup_optimizers
        else:
            from unifiedamp.integrations.accelerate import AmpAccelerator

            own = AmpAccelerator(amp)
            self.model = self.optimizer = own.prepare
        self.amp, self.backward = amp, own.backward

    def step(self, model, optimizer, value):
        self.backward(model(torch.tensor([value])))
        optimizer.step()
        optimizer.zero_grad()


def sgd(model, lr):
    return torch.optim.SGD(model.parameters(), lr=lr)


def weight(model):
    return next(model.parameters()).item()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("host", HOSTS)
def test_the_first_step_of_each_model_is_applied(host, policy):
    loop = Loop(host, policy)
    models = [loop.model(probes.Probe()), loop.model(probes.Probe())]
    optimizers = [loop.optimizer(sgd(model, 0.125)) for model in models]
    for _ in range(2):
        for model, optimizer in zip(models, optimizers, strict=True):
            loop.step(model, optimizer, 1.0)
    assert [weight(model) for model in models] == [0.75, 0.75]
    assert loop.amp.applied_steps == 4


@pytest.mark.parametrize("host", HOSTS)
def test_a_backward_pass_that_failed_before_the_optimizer_was_known_leaves_nothing(host):
    loop = Loop(host, "float32")
    model = loop.model(torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)))
    torch.nn.init.ones_(next(model.parameters()))
    last = list(model.parameters())[1]
    torch.nn.init.ones_(last)

    def fail(_):
        raise KeyboardInterrupt

    hook = next(model.parameters()).register_hook(fail)  # after the last layer has its gradient
    with pytest.raises(KeyboardInterrupt):
        loop.backward(model(torch.ones(1)).sum())
    hook.remove()
    optimizer = loop.optimizer(sgd(model, 0.125))
    loop.backward(model(torch.ones(1)).sum())
    optimizer.step()
    assert last.item() == 0.875


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("host", HOSTS)
def test_a_new_optimizer_takes_over(host, policy):
    loop = Loop(host, policy)
    model = loop.model(probes.Probe())
    first = loop.optimizer(sgd(model, 0.125))
    loop.step(model, first, 1.0)
    second = loop.optimizer(sgd(model, 0.25))
    for _ in range(2):
        loop.step(model, second, 1.0)
    assert weight(model) == 0.375
    with pytest.raises(ua.StepOrderError, match=r"SGD\.step: an optimizer that was prepared later trains parameters"):
        loop.step(model, first, 1.0)
    assert weight(model) == 0.375
