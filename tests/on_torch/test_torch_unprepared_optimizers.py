"""An optimizer that was left out of ``amp.prepare``: its gradients are scaled, and nothing unscales them."""

import pytest
import torch
from loops import batch, mlp, session, weights

import unifiedamp as ua

SAYS = r"Adam\.step\(\): its gradients are those of a loss that amp\.scale_loss scaled, and this Adam was not prepared"


def test_one_over_other_parameters_of_a_prepared_model_is_refused():
    amp, model = session(loss_scale=64.0), mlp()
    optimizer, other = torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[3].parameters())
    amp.prepare(model, optimizer)
    amp.backward(lambda: model(batch()[0]).square().mean(), optimizer)
    amp.step(optimizer)
    before = weights(model)
    with pytest.raises(ua.StepOrderError, match=SAYS):
        other.step()
    assert all(map(torch.equal, weights(model), before))
    other.zero_grad()
    model(batch()[0]).square().mean().backward()
    other.step()
    assert not torch.equal(model[3].weight, before[2])


def test_one_over_another_model_is_refused_from_its_second_step_on():
    """Nothing tells of it before."""
    amp, model, head, apart = session(loss_scale=64.0), mlp(), torch.nn.Linear(4, 1), mlp()
    optimizer, other = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam(head.parameters())
    elsewhere = torch.optim.Adam(apart.parameters())
    amp.prepare(model, optimizer)
    for index in range(2):
        amp.backward(lambda: head(model(batch()[0])).square().mean(), optimizer)
        amp.step(optimizer)
        apart(batch()[0]).square().mean().backward()
        elsewhere.step()
        if not index:
            other.step()
            other.zero_grad()
    with pytest.raises(ua.StepOrderError, match=SAYS):
        other.step()
    for param in head.parameters():
        param.grad /= amp.loss_scale  # by hand
    other.step()
