"""bfloat16 with a scaler that the flag turns off, and a try around the step."""

import torch


def train(flag):
    torch.manual_seed(14)
    model = torch.nn.Linear(6, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, enabled=flag)
    for _ in range(4):
        try:
            x = torch.randn(8, 6)
            optimizer.zero_grad()
            with torch.autocast(device_type="cuda", dtype=torch.bfloat16, enabled=flag):
                loss = (model(x) - 1).pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        except RuntimeError:
            raise
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
