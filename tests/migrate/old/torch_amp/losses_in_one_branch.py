"""Two networks whose losses go backward in one branch of an ``if``, each for its own optimizer."""

import torch
from torch import nn
from torch.cuda.amp import GradScaler, autocast


def train(flag):
    torch.manual_seed(5)
    judge = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1))
    maker = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4))
    judge_optimizer = torch.optim.SGD(judge.parameters(), lr=0.05)
    maker_optimizer = torch.optim.SGD(maker.parameters(), lr=0.05)
    scaler = GradScaler(init_scale=64.0, enabled=flag)
    judged, seen = 0, 0
    for _ in range(6):
        with autocast(enabled=flag):
            judged += judge(torch.randn(8, 4)).mean() - judge(maker(torch.randn(8, 3)).detach()).mean()
        seen += 1
        if seen == 2:
            judge_optimizer.zero_grad()
            maker_optimizer.zero_grad()
            with autocast(enabled=flag):
                judged /= 2
            scaler.scale(judged).backward()
            scaler.step(judge_optimizer)

            with autocast(enabled=flag):
                made = judge(maker(torch.randn(8, 3))).mean()
            scaler.scale(made).backward()
            scaler.step(maker_optimizer)
            scaler.update()
            judged, seen = 0, 0
    return [w for p in (*judge.parameters(), *maker.parameters()) for w in p.detach().flatten().tolist()]
