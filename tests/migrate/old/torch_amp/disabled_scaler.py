"""With its flag off a scaler is disabled, and not None: the region is on, and the branch with the scaler is taken."""

import torch


def take(net, x, optimizer, seen, scaler=None):
    with torch.cuda.amp.autocast(enabled=(scaler is not None)):
        seen.append(float(torch.is_autocast_enabled("cpu")))
        loss = net(x).float().square().mean()
    optimizer.zero_grad()
    if scaler is not None:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    else:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
        optimizer.step()


def train(flag):
    torch.manual_seed(6)
    net = torch.nn.Linear(5, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.cuda.amp.GradScaler(init_scale=1024.0, enabled=flag)
    seen = []
    for _ in range(3):
        take(net, torch.randn(4, 5), optimizer, seen, scaler)
    return seen + [w for p in net.parameters() for w in p.detach().flatten().tolist()]
