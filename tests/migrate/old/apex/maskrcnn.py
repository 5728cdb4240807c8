"""maskrcnn-benchmark: the level is chosen before, and losses come in a dict."""

import torch
from apex import amp


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rpn, self.roi = torch.nn.Linear(6, 2), torch.nn.Linear(6, 3)

    def forward(self, images, targets=None):
        return {"rpn": self.rpn(images).pow(2).mean(), "roi": (self.roi(images) - 1).pow(2).mean()}


def do_train(model, data_loader, optimizer, scheduler):
    for images, targets in data_loader:
        loss_dict = model(images, targets)
        losses = sum(loss for loss in loss_dict.values())
        optimizer.zero_grad()
        # Note: If mixed precision is not used, this ends up doing nothing
        with amp.scale_loss(losses, optimizer) as scaled_losses:
            scaled_losses.backward()
        optimizer.step()
        scheduler.step()


def train(flag):
    torch.manual_seed(2)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    # Initialize mixed-precision training
    use_mixed_precision = flag
    amp_opt_level = "O1" if use_mixed_precision else "O0"
    model, optimizer = amp.initialize(model, optimizer, opt_level=amp_opt_level)
    do_train(model, [(torch.randn(4, 6), None) for _ in range(4)], optimizer, scheduler)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
