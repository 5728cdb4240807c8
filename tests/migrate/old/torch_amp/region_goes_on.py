"""The step is taken inside the autocast region, which then computes what is logged."""

import torch


def train(flag):
    torch.manual_seed(15)
    net = torch.nn.Linear(5, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.cuda.amp.GradScaler(init_scale=256.0, enabled=flag)
    right = 0.0
    for _ in range(3):
        x, y = torch.randn(4, 5), torch.randint(0, 3, (4,))
        optimizer.zero_grad()
        with torch.cuda.amp.autocast(enabled=flag):
            out = net(x).float()
            loss = torch.nn.functional.cross_entropy(out, y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            # how often it is right
            right += (out.argmax(1) == y).float().mean().item()
            scaler.update()
    return [right] + [w for p in net.parameters() for w in p.detach().flatten().tolist()]
