"""The caller as it was."""

import torch
from apex import amp
from engine import do_train


def train(flag):
    torch.manual_seed(6)
    source, target = torch.nn.Linear(5, 3), torch.nn.Linear(5, 3)
    optimizer = torch.optim.SGD(target.parameters(), lr=0.2)
    [source, target], optimizer = amp.initialize([source, target], optimizer, opt_level="O1" if flag else "O0")
    loader = [(torch.randn(4, 5), torch.randint(0, 3, (4,))) for _ in range(3)]
    do_train(source, target, loader, optimizer)
    return [w for p in target.parameters() for w in p.detach().flatten().tolist()]
