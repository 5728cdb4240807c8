"""The head is trained first, then all of it: two optimizers, initialized one after the other."""

import torch
from apex import amp


def train(flag):
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    head = torch.optim.SGD(model[2].parameters(), lr=0.1)
    everything = torch.optim.SGD(model.parameters(), lr=0.05)
    model, [head, everything] = amp.initialize(model, [head, everything], opt_level="O1" if flag else "O0")
    for phase in range(2):
        optimizer = head if phase == 0 else everything
        for _ in range(2):
            loss = (model(torch.randn(6, 5)) - 1).pow(2).mean()
            optimizer.zero_grad()
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
