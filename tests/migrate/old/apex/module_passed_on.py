"""Apex's module goes to the functions that save and load, which name their parameter as they like, and to the loop."""

import torch
from apex import amp


def save(model, optimizer, amp):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    if amp is not None:
        state["amp"] = amp.state_dict()
    return state


def load(state, model, scaling=None):
    model.load_state_dict(state["model"])
    if "amp" in state:
        scaling.load_state_dict(state["amp"])


def train_step(model, optimizer, amp, x):
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 0.5)
    optimizer.step()


def train(flag):
    module = amp
    torch.manual_seed(45)
    model = torch.nn.Linear(5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = module.initialize(model, optimizer, opt_level="O1" if flag else "O0", verbosity=0)
    x = torch.randn(6, 5)
    for _ in range(3):
        train_step(model, optimizer, amp, x)
    state = save(model, optimizer, amp=amp)
    assert "amp" not in save(model, optimizer, None)
    train_step(model, optimizer, amp, x)
    load(state, model, scaling=amp)
    train_step(model, optimizer, amp, x)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
