"""A model that Apex patches to be traced: no loss, and no region that would cast."""

import torch


def trace(model, batch, opt_level=None):
    if opt_level is not None:
        from apex import amp

        model = amp.initialize(model, optimizers=None, opt_level=opt_level)
    model.eval()
    return torch.jit.trace(model, batch)
