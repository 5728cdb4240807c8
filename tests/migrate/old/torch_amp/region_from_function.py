"""A function chooses the region by its arguments; a local variable and a parameter are called amp."""

from contextlib import nullcontext

import torch


def amp_context(kind, enabled=True):
    return torch.autocast("cuda", dtype=torch.float16) if enabled and kind == "cuda" else nullcontext()


def train_epoch(model, loader, optimizer, scaler, kind, amp):
    model.train()
    for inputs, targets in loader:
        optimizer.zero_grad(set_to_none=True)
        with amp_context(kind, amp or len == 0):
            loss = torch.nn.functional.cross_entropy(model(inputs).float(), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    model.eval()
    with torch.no_grad(), amp_context(enabled=amp, kind=kind):
        return sum(model(inputs).float().sum().item() for inputs, _ in loader)


def train(flag):
    torch.manual_seed(31)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    scaler = torch.cuda.amp.GradScaler(init_scale=128.0, enabled=flag)
    loader = [(torch.randn(5, 6), torch.randint(0, 3, (5,))) for _ in range(3)]
    for _ in range(2):
        train_epoch(model, loader, optimizer, scaler, "cuda" if flag else "cpu", flag)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
