"""Tiny models for the tests of ``unifiedamp.compat.apex``, and steps whose gradients overflow on demand."""

import torch

from unifiedamp.compat import apex as amp

LEVELS = ("O0", "O1", "O2", "O3")


def weights(*values):
    """Return a model with a weight per value, and no bias; its output is the sum of weight times input."""
    model = torch.nn.Linear(len(values), 1, bias=False)
    model.weight.data = torch.tensor([values])
    return model


def ready(opt_level="O1", lr=0.25, start=(1.0, 2.0), **options):
    """Return an initialized model and SGD optimizer."""
    model = weights(*start)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return amp.initialize(model, optimizer, opt_level=opt_level, **{"verbosity": 0} | options)


def backward(model, optimizer, gradient, **options):
    """Give the weights this gradient, as floats; inf and nan give what a backward pass that overflows gives.

    The gradient of the model's output is 2**-9, so that 16 bits hold it times a scale of up to 2**24.
    """
    loss = model(torch.tensor([gradient]) * 2.0**9).sum() * 2.0**-9
    with amp.scale_loss(loss, optimizer, **options) as scaled_loss:
        scaled_loss.backward()


def step(model, optimizer, gradient):
    """Do one whole step."""
    optimizer.zero_grad()
    backward(model, optimizer, gradient)
    optimizer.step()


def values(params):
    """Return parameters' numbers."""
    return [number for param in params for number in param.flatten().tolist()]


def grads(optimizer):
    """Return the gradients that the optimizer would use, as floats."""
    return [number for param in amp.master_params(optimizer) for number in param.grad.flatten().tolist()]
