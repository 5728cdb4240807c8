"""An optimizer is made again while steps are taken after several micro-batches."""

import torch


def train(net, loader):
    scaler = torch.cuda.amp.GradScaler()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(4):
        if epoch == 2:
            optimizer = torch.optim.SGD(
                net.parameters(), lr=0.01
            )
        for i, x in enumerate(loader):
            with torch.cuda.amp.autocast():
                loss = net(x).mean()
            scaler.scale(loss).backward()
            if (i + 1) % 4 == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
