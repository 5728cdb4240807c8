"""A region that is kept in a variable: its loss goes backward inside, and the step is behind it."""

import torch


def train(flag):
    torch.manual_seed(29)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(enabled=flag, init_scale=64.0)
    ctx = torch.amp.autocast("cuda", dtype=torch.float16, enabled=flag)
    weights = {"l1": 0.5, "l2": 1.0}
    done = 0
    for _ in range(6):
        total = 0.0
        x = torch.randn(8, 6)
        with ctx:
            out = model(x)
            if weights["l2"] > 0.0:
                total += (out - 1.0).pow(2).mean() * weights["l2"] / 2

            scaler.scale(total).backward()

        done += 1
        if done % 2 == 0:
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            scaler.step(opt)
            opt.zero_grad(set_to_none=True)
            scaler.update()
            with torch.no_grad(), ctx:
                model(x)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
