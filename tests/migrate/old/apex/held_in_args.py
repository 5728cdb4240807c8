"""UER's scripts: main keeps Apex's module in the arguments, and the function that trains finds it there."""

from types import SimpleNamespace

import torch


def train_model(args, model, optimizer, batch):
    model.zero_grad()
    loss = model(batch).pow(2).mean()
    if torch.cuda.device_count() > 100:
        loss = torch.mean(loss)
    if args.fp16:
        with args.amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
    else:
        loss.backward()
    optimizer.step()
    return loss


def train(flag):
    torch.manual_seed(36)
    args = SimpleNamespace(fp16=flag, fp16_opt_level="O0")
    model = torch.nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if args.fp16:
        try:
            from apex import amp
        except ImportError:
            raise ImportError("Please install apex to use fp16 training.")
        model, optimizer = amp.initialize(model, optimizer, opt_level=args.fp16_opt_level)
        args.amp = amp
    args.model = model
    for _ in range(3):
        train_model(args, model, optimizer, torch.randn(4, 5))
    return [w for p in args.model.parameters() for w in p.detach().flatten().tolist()]
