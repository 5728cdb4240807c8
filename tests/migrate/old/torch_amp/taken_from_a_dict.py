"""A step whose model and optimizer are items of a dict that it is given; the scaler is made once for the file."""

import torch

scaler = torch.cuda.amp.GradScaler(init_scale=512.0)


def train_step(resources):
    model = resources["model"]
    optimizer = resources["optimizer"]
    model.train()
    with torch.cuda.amp.autocast():
        loss = model(resources["batch"]).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)


def train(flag):
    torch.manual_seed(4)
    model = torch.nn.Linear(4, 2)
    resources = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    for _ in range(3):
        resources["batch"] = torch.randn(8, 4)
        train_step(resources)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
