"""Person re-identification: a second optimizer of the loss's own centers, whose gradients are divided."""

import torch
from apex import amp


class CenterLoss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.centers = torch.nn.Parameter(torch.randn(3, 4))

    def forward(self, features, labels):
        return (features - self.centers[labels]).pow(2).sum(1).mean()


def train(flag):
    torch.manual_seed(3)
    model, center = torch.nn.Linear(6, 4), CenterLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer_center = torch.optim.SGD(center.parameters(), lr=0.5)
    if flag:
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for _ in range(4):
        optimizer.zero_grad()
        optimizer_center.zero_grad()
        x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
        features = model(x)
        loss = features.pow(2).mean() + 0.01 * center(features, y)
        if flag:
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            loss.backward()
        optimizer.step()
        for param in center.parameters():
            param.grad.data *= 1.0 / 0.01
        optimizer_center.step()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
