"""A step behind a flag, through a helper of the same file, and what goes into a checkpoint."""

from apex import amp


def backward(cfg, loss, optimizer):
    if cfg.fp16:
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
    else:
        loss.backward()


def do_train(cfg, model, optimizer, loader):
    model.train()
    for x, y in loader:
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        backward(cfg, loss, optimizer)
        optimizer.step()


def checkpoint(cfg, model):
    state = {"model": model.state_dict()}
    if cfg.fp16:
        state["amp"] = amp.state_dict()
    return state
