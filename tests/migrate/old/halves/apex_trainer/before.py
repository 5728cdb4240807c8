"""The caller as it was."""

import engine
import torch
from apex import amp


def train(flag):
    torch.manual_seed(6)
    model = torch.nn.Linear(5, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    if flag:
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1", loss_scale=128.0)
    loader = [(torch.randn(4, 5), torch.randn(4, 4)) for _ in range(4)]
    trainer = engine.Trainer(model, optimizer, loader, use_amp=flag, accumulate=2, max_norm=0.5)
    trainer.train(2)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
