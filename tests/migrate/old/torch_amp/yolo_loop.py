"""A detector's loop: accumulation with warm-up, an averaged model, and the scaler's state nowhere."""

import copy

import torch
from torch.cuda import amp


class ModelEMA:
    def __init__(self, model):
        self.ema = copy.deepcopy(model).eval()

    def update(self, model):
        with torch.no_grad():
            for v, m in zip(self.ema.parameters(), model.parameters()):
                v.mul_(0.9).add_(m.detach(), alpha=0.1)


def train(flag):
    torch.manual_seed(3)
    cuda = flag
    model = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.SiLU(), torch.nn.Linear(10, 5))
    g0, g1 = [], []
    for name, p in model.named_parameters():
        (g0 if name.endswith("bias") else g1).append(p)
    optimizer = torch.optim.SGD(g0, lr=0.05, momentum=0.9, nesterov=True)
    optimizer.add_param_group({"params": g1, "weight_decay": 5e-4})
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda=lambda x: 1 - 0.1 * x)
    ema = ModelEMA(model)
    scaler = amp.GradScaler(enabled=cuda, init_scale=512.0)
    last_opt_step, accumulate = -1, 2
    for epoch in range(2):
        optimizer.zero_grad()
        for i in range(4):
            ni = i + 4 * epoch
            imgs, targets = torch.randn(8, 6), torch.randn(8, 5)
            with amp.autocast(enabled=cuda):
                pred = model(imgs)
                loss = ((pred - targets) ** 2).mean()
            scaler.scale(loss).backward()
            if ni - last_opt_step >= accumulate:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                if ema:
                    ema.update(model)
                last_opt_step = ni
        scheduler.step()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
