"""Several losses for one optimizer in one step, and a scaler whose scale is logged."""

import torch


def train(flag):
    torch.manual_seed(10)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Softplus(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.cuda.amp.GradScaler(init_scale=1024.0, enabled=flag)
    for step in range(4):
        x = torch.randn(6, 4)
        with torch.cuda.amp.autocast(enabled=flag):
            out = model(x)
            loss_a = out[:, 0].pow(2).mean()
            loss_b = (out[:, 1] - 1).abs().mean()
        optimizer.zero_grad()
        scaler.scale(loss_a).backward(retain_graph=True)
        scaler.scale(loss_b).backward()
        scaler.step(optimizer)
        scaler.update()
        if step == 2:
            print("scale", scaler.get_scale())
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
