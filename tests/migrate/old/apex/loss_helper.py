"""The loss comes from a function that is given the model; validation in the same file."""

import torch
from apex import amp


def compute_loss(model, batch):
    x, y = batch
    return torch.nn.functional.mse_loss(model(x), y)


def validate(model, batch):
    model.eval()
    with torch.no_grad():
        loss = compute_loss(model, batch)
    model.train()
    return loss.item()


def train(flag):
    torch.manual_seed(14)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Sigmoid(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
    if flag:
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    batches = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(5)]
    for batch in batches:
        optimizer.zero_grad()
        loss = compute_loss(model, batch)
        if flag:
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            loss.backward()
        optimizer.step()
    assert validate(model, batches[0]) > 0
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
