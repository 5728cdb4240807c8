"""The caller with a session."""

import engine
import torch

import unifiedamp as ua


class Detector(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(5, 4)

    def forward(self, images, targets):
        return {"boxes": (self.layer(images).float() - targets).square().mean()}


def train(flag):
    torch.manual_seed(5)
    model = Detector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    scale = 128.0 if flag else "none"
    amp = ua.Amp("torch", policy="O1" if flag else "float32", loss_scale=scale)
    model, optimizer = amp.prepare(model, optimizer)
    loader = [(torch.randn(4, 5), torch.randn(4, 4)) for _ in range(3)]
    engine.train(model, optimizer, loader, flag, amp=amp)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
