"""The planted model of PyTorch."""

import torch
from planted import CLASSES, FAINT, RATE, WIDTH, Built


class Fade(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * FAINT


class Planted(torch.nn.Module):
    def __init__(self, parts, faint):
        super().__init__()
        self.parts, self.faint = parts, faint
        for part in range(parts):
            layer = torch.nn.Linear(WIDTH, CLASSES)
            for param in layer.parameters():
                torch.nn.init.zeros_(param)
            setattr(self, f"l{part}", layer)

    def forward(self, x):
        outs = [getattr(self, f"l{part}")(x[part]) for part in range(self.parts)]
        return sum(Fade.apply(out) if part in self.faint else out for part, out in enumerate(outs))


def build(parts, faint):
    model = Planted(parts, faint)
    groups = [
        {"params": list(getattr(model, f"l{part}").parameters()), "lr": RATE / FAINT if part in faint else RATE}
        for part in range(parts)
    ]
    return Built(model, torch.optim.SGD(groups), lambda out, y: torch.nn.functional.cross_entropy(out[: len(y)], y))
