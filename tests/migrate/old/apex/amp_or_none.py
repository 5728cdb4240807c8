"""The import sets ``amp`` to None where Apex is missing; later code asks for it as for a flag."""

import torch

try:
    from apex import amp
except ImportError:
    # no fp16
    amp = None


def optimize(model, optimizer, batch, amp_run):
    loss = (model(batch) - 1).pow(2).mean()
    if amp_run:
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 0.5)
    else:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()


def train(flag):
    torch.manual_seed(11)
    assert amp or not flag, "fp16 needs Apex"
    model = torch.nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp_run = False
    if flag and amp:
        amp_run = True
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    if not amp:
        raise RuntimeError
    for _ in range(3):
        model.zero_grad()
        optimize(model, optimizer, torch.randn(6, 5), amp_run)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
