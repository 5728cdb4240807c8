"""Apex's ImageNet example in small: O2, options as the command line gives them (text), batch norm, a schedule."""

import torch
from apex import amp


def train(steps: int) -> list[float]:
    torch.manual_seed(0)
    images = torch.randn(32, 3, 8, 8)
    target = torch.randint(0, 4, (32,))
    images += torch.randn(4, 3, 8, 8)[target]

    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1, bias=False),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(32, 4),
    )
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)

    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", keep_batchnorm_fp32="True", loss_scale="128.0")
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=50)

    losses = []
    for step in range(steps):
        output = model(images)
        loss = criterion(output, target)

        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 5.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses
