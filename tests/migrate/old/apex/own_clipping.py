"""A clipping function of one's own, which edits gradients, and a look at their norm."""

import torch
from apex import amp


def clip_gradient(optimizer, limit):
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.grad is not None:
                param.grad.data.clamp_(-limit, limit)


def train(flag):
    torch.manual_seed(8)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    if flag:
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    norms = []
    for _ in range(5):
        x = torch.randn(12, 8)
        loss = (model(x) - 3 * x[:, :2]).pow(2).mean()
        optimizer.zero_grad()
        if flag:
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            loss.backward()
        norms.append(sum(p.grad.norm().item() for p in model.parameters()))
        clip_gradient(optimizer, 0.05)
        optimizer.step()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()] + norms
