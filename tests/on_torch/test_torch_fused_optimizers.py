"""Optimizers that are fused and put back. Some are on a GPU that torch only pretends to have, by fake tensors."""

import torch
from loops import session
from torch._subclasses.fake_tensor import FakeTensorMode

from unifiedamp_torch.device.fused_optimizers import fuse, why_not_fused


def test_step_counters_are_put_back_where_each_group_reads_them():
    """A plain group waits for the GPU where its counters are there, and a fused one fails where they are not."""
    with FakeTensorMode():
        params = [torch.nn.Parameter(torch.ones(2, device="cuda")) for _ in range(4)]
        settings = ({}, {"capturable": True}, {"fused": True}, {"foreach": False})
        groups = [{"params": [param], **each} for param, each in zip(params, settings, strict=True)]
        optimizer = torch.optim.Adam(groups)
        for param in params:
            param.grad = torch.ones_like(param)
        optimizer.step()

        def devices():
            return [optimizer.state[param]["step"].device.type for param in params]

        assert devices() == ["cpu", "cuda", "cuda", "cpu"]
        undo = fuse(optimizer)
        assert devices() == ["cuda"] * 4
        undo()
        assert devices() == ["cpu", "cuda", "cuda", "cpu"]


def test_a_loaded_state_has_its_counters_on_the_device():
    with FakeTensorMode():
        param = torch.nn.Parameter(torch.ones(2, device="cuda"))
        param.grad = torch.ones_like(param)
        plain, fused = (torch.optim.Adam([param]) for _ in range(2))
        plain.step()
        fuse(fused)
        fused.load_state_dict(plain.state_dict())
        assert fused.state[param]["step"].device.type == "cuda"


def flags_of(optimizer):
    """What a GradScaler of torch looks at, among others."""
    return {name: value for name, value in vars(optimizer).items() if isinstance(value, bool)}


def test_the_attributes_of_an_optimizer_are_those_torch_gives_it():
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    groups = [{"params": params[:1]}, {"params": params[1:], "fused": False}]
    for mixed in (torch.optim.SGD(groups, fused=True), torch.optim.SGD(params)):
        before = flags_of(mixed)
        undo = fuse(mixed)
        assert flags_of(mixed) == flags_of(torch.optim.SGD(params, fused=True))
        undo()
        assert flags_of(mixed) == before


def test_a_state_that_is_loaded_after_the_session_leaves_the_optimizer_as_it_is():
    model = torch.nn.Linear(2, 1)
    amp = session(tuning={"fused_optimizer": True})
    model, optimizer = amp.prepare(model, torch.optim.Adam(model.parameters()))
    assert optimizer.param_groups[0]["fused"]
    amp.close()
    optimizer.load_state_dict(optimizer.state_dict())
    assert not optimizer.param_groups[0]["fused"]


def test_a_state_of_another_layout_than_its_parameters_is_updated_right():
    """The user's own steps came before the user's change to channels last."""
    runs = []
    for items in ({}, {"fused_optimizer": True}):
        torch.manual_seed(0)
        model = torch.nn.Conv2d(3, 4, 3)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        x = torch.randn(2, 3, 5, 5)
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        amp = session(tuning=items)
        model, optimizer = amp.prepare(model.to(memory_format=torch.channels_last), optimizer)
        with amp.autocast():
            loss = (model(x) * torch.arange(9.0).reshape(3, 3)).sum()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        amp.step(optimizer)
        runs.append(model.weight.detach())
    torch.testing.assert_close(*runs, rtol=1e-5, atol=1e-6)


def test_one_differentiable_group_keeps_an_optimizer_unfused():
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    groups = [{"params": params[:1]}, {"params": params[1:], "differentiable": True}]
    assert why_not_fused(torch.optim.Adam(groups)) == "this Adam is differentiable"
