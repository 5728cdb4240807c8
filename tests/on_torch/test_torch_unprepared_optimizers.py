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


@pytest.mark.parametrize("value", [1.0, float("inf")])
def test_gradients_that_a_loop_unscales_by_their_data_are_its_own(value):
    """Without a trace in the gradient's version; those of an overflow are the same before and after."""
    amp, model, head = session(loss_scale=64.0), torch.nn.Linear(2, 2), torch.nn.Linear(2, 1, bias=False)
    optimizer, other = torch.optim.SGD(model.parameters(), lr=0.0), torch.optim.Adam(head.parameters())
    amp.prepare(model, optimizer)
    for index in range(3):
        other.zero_grad()
        amp.backward(lambda: head(model(torch.full((1, 2), value))).sum(), optimizer)
        amp.step(optimizer)
        if index == 2:
            with pytest.raises(ua.StepOrderError, match=SAYS):
                other.step()
        head.weight.grad.data /= amp.loss_scale
        if value == 1.0 or not index:
            other.step()
