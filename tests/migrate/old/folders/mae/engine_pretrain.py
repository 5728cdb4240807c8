"""MAE's epoch: the region here, the scaler in util/misc.py."""

import torch


def train_one_epoch(model, data_loader, optimizer, loss_scaler, args):
    for i, samples in enumerate(data_loader):
        with torch.cuda.amp.autocast():
            loss, _, _ = model(samples, mask_ratio=args.mask_ratio)
        loss /= args.accum_iter
        loss_scaler(loss, optimizer, parameters=model.parameters(), update_grad=(i + 1) % args.accum_iter == 0)
        if (i + 1) % args.accum_iter == 0:
            optimizer.zero_grad()
