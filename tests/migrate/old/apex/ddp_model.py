"""The model is wrapped after initialize and goes by another name in the function that trains."""

import argparse

import torch
from apex import amp
from apex.parallel import DistributedDataParallel as DDP


def train_epoch(args, network, criterion, optimizer, batches):
    for images, target in batches:
        output = network(images)
        loss = criterion(output, target)
        optimizer.zero_grad()
        if args.opt_level is not None:
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            loss.backward()
        optimizer.step()


def main(args, batches):
    model = torch.nn.Linear(7, 4)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    if args.opt_level is not None:
        model, optimizer = amp.initialize(model, optimizer, opt_level=args.opt_level, loss_scale=args.loss_scale)
    if args.distributed:
        ddp_model = DDP(model, delay_allreduce=True)
    else:
        ddp_model = model
    train_epoch(args, ddp_model, torch.nn.CrossEntropyLoss(), optimizer, batches)
    return model


def train(flag):
    torch.manual_seed(3)
    args = argparse.Namespace(opt_level="O1" if flag else None, lr=0.1, loss_scale=128.0, distributed=False)
    batches = [(torch.randn(16, 7), torch.randint(0, 4, (16,))) for _ in range(5)]
    return [w for p in main(args, batches).parameters() for w in p.detach().flatten().tolist()]
