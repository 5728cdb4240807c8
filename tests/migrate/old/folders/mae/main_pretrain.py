"""MAE's script."""

import torch
from engine_pretrain import train_one_epoch
from util.misc import NativeScalerWithGradNormCount as NativeScaler


def main(args, model, data_loader):
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loss_scaler = NativeScaler()
    for _ in range(args.epochs):
        train_one_epoch(model, data_loader, optimizer, loss_scaler, args)
    return {"model": model.state_dict(), "scaler": loss_scaler.state_dict()}
