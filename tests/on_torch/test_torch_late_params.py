"""The ways in which torch gives a prepared model parameters that its optimizer does not have."""

import gc
import weakref

import pytest
import torch
from loops import make_step, session
from torch.nn.modules import module as torch_module
from torch.nn.utils.parametrizations import weight_norm

import unifiedamp as ua


def insert(model):
    model.insert(1, torch.nn.Linear(4, 4))


def add_to_a_list(model):
    model[0].extra = torch.nn.ModuleList()
    model[0].extra.insert(0, torch.nn.Linear(4, 4))
    model[0].register_forward_hook(lambda module, _args, output: module.extra[0](output))


def assign(model):
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)


def split_weight(model):
    weight_norm(model[0])


@pytest.mark.parametrize("change", [insert, add_to_a_list, assign, split_weight])
def test_new_parameters_are_refused(change):
    amp = session(loss_scale=4.0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    model, optimizer = amp.prepare(net, torch.optim.SGD(net.parameters(), 0.1))
    step, x, y = make_step(amp, model, optimizer), torch.ones(8, 4), torch.zeros(8, dtype=torch.long)
    step(x, y)
    change(model)
    before = [param.detach().clone() for param in optimizer.param_groups[0]["params"]]
    with pytest.raises(ua.PrepareError, match=r"came into the model after amp\.prepare"):
        step(x, y)
    assert all(map(torch.equal, before, optimizer.param_groups[0]["params"]))
    optimizer.add_param_group(
        {"params": [each for each in model.parameters() if all(each is not one for one in _of(optimizer))]}
    )
    step(x, y)
    assert amp.applied_steps == 2


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("policy", ["float32", "bfloat16"])
@pytest.mark.parametrize("scale", ["none", 4.0])
def test_added_parameters_are_not_given_what_earlier_losses_left_in_them(scale, policy, accumulate):
    amp = session(policy, loss_scale=scale, accumulate_steps=accumulate, master_weights=policy == "bfloat16")
    net = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 1, bias=False))
    model, optimizer = amp.prepare(net, torch.optim.SGD(net[1].parameters(), 0.125))

    def window():
        for value in range(accumulate):
            amp.backward(lambda value=value: model(torch.full((1, 2), 1.0 + value)).float().sum(), optimizer)
            result = amp.step(optimizer)
        return result

    window()
    window()
    optimizer.add_param_group({"params": list(net[0].parameters()), "lr": 0.0625})
    before = [param.detach().double() for param in net.parameters()]
    assert window().applied
    mean = sum(1.0 + value for value in range(accumulate)) / accumulate
    expected = before[0] - 0.0625 * mean * before[1].reshape(2, 1)
    assert torch.allclose(net[0].weight.double(), expected, rtol=2.0**-7, atol=2.0**-8)


def _of(optimizer):
    return [param for group in optimizer.param_groups for param in group["params"]]


@pytest.mark.parametrize("closed", [True, False])
def test_sessions_share_their_registration_hooks(closed):
    def hooks():
        return len(torch_module._global_module_registration_hooks | torch_module._global_parameter_registration_hooks)

    gc.collect()
    before = hooks()
    for _ in range(3):
        amp, model = session(), torch.nn.Linear(2, 2)
        amp.prepare(model)
        held = weakref.ref(model)
        if closed:
            amp.close()
        del amp, model
        gc.collect()
        assert held() is None
    assert hooks() <= (before if closed else before + 2)


def test_the_last_session_that_closes_takes_the_hooks_away():
    def ours():
        every = torch_module._global_module_registration_hooks | torch_module._global_parameter_registration_hooks
        return [hook for hook in every.values() if hook.__module__.startswith("unifiedamp_torch.")]

    gc.collect()  # sessions of earlier tests
    first, second = session(), session()
    first.prepare(torch.nn.Linear(2, 2))
    second.prepare(torch.nn.Linear(2, 2))
    assert len(ours()) == 2
    second.close()
    assert len(ours()) == 2
    first.close()
    assert ours() == []


def test_a_layer_is_made_while_a_dropped_session_is_collected():
    """Python collects garbage at any moment, also while torch goes through its registration hooks."""
    gc.collect()
    sessions = []

    def collect(*_):
        sessions.clear()
        gc.collect()

    handle = torch_module.register_module_parameter_registration_hook(collect)
    try:
        model = torch.nn.Linear(2, 2)
        sessions.append(session())
        sessions[0].prepare(model)
        layer = torch.nn.Linear(2, 2)
    finally:
        handle.remove()
    assert layer.bias is not None
