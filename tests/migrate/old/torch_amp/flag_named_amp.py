"""A parameter is called amp, as in many scripts for segmentation."""

import torch
from torch import nn


def train_model(model, amp=False, gradient_clipping=1.0):
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01, foreach=True)
    grad_scaler = torch.cuda.amp.GradScaler(init_scale=1024.0, enabled=amp)
    criterion = nn.BCEWithLogitsLoss()
    for _ in range(5):
        images, true_masks = torch.randn(4, 6), torch.randint(0, 2, (4, 1)).float()
        with torch.autocast("cuda", enabled=amp):
            masks_pred = model(images)
            loss = criterion(masks_pred, true_masks)
            loss += masks_pred.pow(2).mean()
        optimizer.zero_grad(set_to_none=True)
        grad_scaler.scale(loss).backward()
        grad_scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), gradient_clipping)
        grad_scaler.step(optimizer)
        grad_scaler.update()


def train(flag):
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 1))
    train_model(model, amp=flag)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
