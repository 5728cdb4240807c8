"""amp.initialize here, amp.scale_loss in engine.py."""

import torch
from apex import amp
from engine import train_one_epoch


def main(level):
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level)
    criterion = torch.nn.CrossEntropyLoss()
    loader = [(torch.randn(16, 8), torch.randint(0, 4, (16,))) for _ in range(3)]
    for _ in range(2):
        train_one_epoch(model, criterion, optimizer, loader, clip=0.5)
    return model


def train(flag):
    torch.manual_seed(4)
    model = main("O1" if flag else "O0")
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
