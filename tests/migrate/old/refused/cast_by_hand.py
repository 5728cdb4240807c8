"""The model is cast for a file, and back, between epochs; a copy of it, and the model at the end, may be cast."""

import copy

import torch
from apex import amp


def keep(model, path):
    torch.save(model.to("cpu", torch.float16).state_dict(), path)
    model.cuda().float()


def train(loader, epochs, use_amp):
    model = torch.nn.Sequential(torch.nn.Linear(4, 2)).double().float()
    optimizer = torch.optim.Adam(model.parameters())
    if use_amp:
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for _ in range(epochs):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x.half()), y)
            optimizer.zero_grad()
            if use_amp:
                with amp.scale_loss(loss, optimizer) as scaled_loss:
                    scaled_loss.backward()
            else:
                loss.backward()
            optimizer.step()
        keep(model, "last.pth")
        torch.save(copy.deepcopy(model).half(), "copy.pth")
        print(model.head.weight.half().norm())
        if use_amp:
            model = model.half()
        else:
            model.head.double()
    model.half()
    torch.save(model, "half.pth")
