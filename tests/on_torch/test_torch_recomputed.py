"""Your own ``torch.utils.checkpoint`` in losses that train some of several optimizers."""

import pytest
import torch
from loops import session
from torch.utils.checkpoint import checkpoint


def layers(seed):
    torch.manual_seed(seed)
    return torch.nn.ModuleList([torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()) for _ in range(2)])


def trained(call, prepared, reentrant):
    """The weights of a generator and a discriminator after steps by a session, or by plain torch."""
    models = [layers(seed) for seed in range(2)]
    g, d = models
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5) for model in models]
    amp = session(loss_scale=64.0)
    if prepared:
        amp.prepare(*models, *optimizers)
    x = torch.rand(4, 3, requires_grad=True)

    def fake():
        return g[1](call(g[0], x, use_reentrant=reentrant))

    def score(x):
        return d[1](call(d[0], x, use_reentrant=reentrant)).square().mean()

    losses = [lambda: score(x) - score(fake().detach().requires_grad_()), lambda: score(fake()) + score(x) / 2]
    for _ in range(2):
        for model, optimizer, loss in zip((d, g), optimizers[::-1], losses, strict=True):
            if prepared:
                amp.backward(loss, optimizer)
                assert all(param.grad is not None for param in model.parameters())
                amp.step(optimizer)
            else:
                loss().backward()
                optimizer.step()
                for each in optimizers:
                    each.zero_grad()
    return [param.detach() for model in models for param in model.parameters()]


@pytest.mark.parametrize("reentrant", [True, False])
def test_all_parameters_of_the_optimizer_are_trained_and_no_others(reentrant):
    """With ``use_reentrant=True`` torch left out layers that nothing else of the optimizer stands before."""
    expected = trained(lambda layer, x, use_reentrant: layer(x), False, False)
    torch.testing.assert_close(trained(checkpoint, True, reentrant), expected)


def test_an_open_window_of_another_optimizer_is_kept():
    models = [layers(seed) for seed in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.5) for model in models]
    amp = session(loss_scale=64.0)
    amp.prepare(*models, *optimizers)
    x = torch.rand(4, 3, requires_grad=True)

    def run(model, x):
        return model[1](checkpoint(model[0], x, use_reentrant=True))

    amp.backward(lambda: run(models[1], x).sum(), optimizers[1])
    before = {name: grad.clone() for name, grad in amp.gradients(optimizers[1]).items()}
    amp.backward(lambda: run(models[1], run(models[0], x)).sum(), optimizers[0])
    after = amp.gradients(optimizers[1])
    assert len(before) == 4
    assert all(torch.equal(grad, after[name]) for name, grad in before.items())
