"""The caller with a session."""

import engine
import torch

import unifiedamp as ua


def train(flag):
    torch.manual_seed(6)
    model = torch.nn.Linear(5, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    scale = 128.0 if flag else "none"
    amp = ua.Amp("torch", policy="O1" if flag else "float32", loss_scale=scale)
    model, optimizer = amp.prepare(model, optimizer)
    loader = [(torch.randn(4, 5), torch.randn(4, 4)) for _ in range(4)]
    trainer = engine.Trainer(model, optimizer, loader, use_amp=flag, accumulate=2, max_norm=0.5)
    trainer.train(2, amp=amp)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
