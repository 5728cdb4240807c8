"""Optimizers that are fused for a session, on a GPU that torch only pretends to have: fake tensors hold no numbers."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from unifiedamp_torch.device.fused_optimizers import fuse


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
