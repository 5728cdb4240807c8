"""Gradients are logged after the step: of a model in DataParallel, of an optimizer's groups, and of one layer."""

import torch
from apex import amp


class Trainer:
    def __init__(self, model):
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.model, self.optimizer = amp.initialize(model, self.optimizer, opt_level="O1")
        self.model = torch.nn.DataParallel(self.model)

    def fit(self, loader, writer):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            with amp.scale_loss(loss, self.optimizer) as scaled_loss:
                scaled_loss.backward()
            self.optimizer.step()
            for name, param in self.model.module.named_parameters():
                writer.add_scalar(name, param.grad.norm())
            writer.add_scalar("encoder", sum(p.grad.norm() for p in self.model.module.encoder.parameters()))
            for group in self.optimizer.param_groups:
                for param in group["params"]:
                    writer.add_histogram("gradients", param.grad.cpu())
            writer.add_scalar("head", self.model.module.head.weight.grad.norm())
