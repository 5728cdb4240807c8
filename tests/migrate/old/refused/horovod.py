"""Horovod's optimizer, which sums gradients over workers in its own step."""

import horovod.torch as hvd
import torch
from torch.cuda.amp import GradScaler, autocast

hvd.init()
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
scaler = GradScaler()
for x in loader:
    optimizer.zero_grad()
    with autocast():
        loss = model(x).sum()
    scaler.scale(loss).backward()
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
    scaler.update()
