"""A notebook's loop: the whole step stands in the region."""

import torch
from torch.cuda.amp import GradScaler, autocast


def train_epoch(model, criterion, optimizer, batches, scaler, flag):
    running = 0.0
    for inputs, labels in batches:
        optimizer.zero_grad()
        with autocast(enabled=flag):
            outputs = model(inputs)
            loss = criterion(outputs, labels)

            # the loss goes backward
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if running >= 0:
                running += loss.item()
    return running


def train(flag):
    torch.manual_seed(21)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = GradScaler(enabled=flag)
    batches = [(torch.randn(8, 6), torch.randint(0, 3, (8,))) for _ in range(3)]
    for _ in range(2):
        train_epoch(model, torch.nn.CrossEntropyLoss(), optimizer, batches, scaler, flag)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
