"""The entropy of probabilities in the line that calls the model, and in a function that calls it, at a level of flags."""

import torch
import torch.nn.functional as F
from apex import amp


def objective(model, x, y):
    probabilities = torch.sigmoid(model(x))
    return F.binary_cross_entropy(probabilities, y)


def train(args, model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level=args.level)
    for x, y in loader:
        loss = F.binary_cross_entropy(model(x), y)
        loss = loss + objective(model, x, y)
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
