"""A competition's script: each dataset has a branch with its own model, optimizer, scaler and loop, of one name."""

import torch
from torch.cuda.amp import autocast


def build_model():
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))


def train(flag):
    torch.manual_seed(24)
    mode = "both" if flag else "one"
    batches = [(torch.randn(8, 6), torch.randint(0, 3, (8,))) for _ in range(4)]
    if mode == "one":
        model = build_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scaler = torch.cuda.amp.GradScaler()
        for x, y in batches:
            with autocast():
                loss = torch.nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            del loss
    elif mode == "both":
        model = build_model()
        loss_fc = torch.nn.MultiMarginLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scaler = torch.cuda.amp.GradScaler()
        model = torch.nn.Sequential(model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        for _epoch in range(2):
            for x, y in batches:
                with autocast():
                    pred = model(x)
                    loss = loss_fc(pred, y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                scheduler.step()
                del loss, pred
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
