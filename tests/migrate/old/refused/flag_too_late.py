"""The flag is assigned behind the scaler's first use, and the dtype only in the loop."""

import torch


def first(net, loader, resume):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.cuda.amp.GradScaler()
    scaler.load_state_dict(resume)
    use_amp = torch.cuda.is_available()
    for x in loader:
        with torch.autocast("cuda", enabled=use_amp):
            loss = net(x).mean()
        if use_amp:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()


def second(net, loader):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.cuda.amp.GradScaler()
    for x in loader:
        kind = torch.float16 if x.is_cuda else torch.bfloat16
        with torch.autocast("cuda", dtype=kind):
            loss = net(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
