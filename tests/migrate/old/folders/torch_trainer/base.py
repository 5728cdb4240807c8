"""A trainer that subclasses complete: it makes scaler and optimizer, and takes steps."""

import torch


class BaseTrainer:
    def __init__(self, args):
        self.args = args
        self.model = self.get_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.scaler = torch.cuda.amp.GradScaler(init_scale=512.0, enabled=args.amp)

    def get_model(self):
        raise NotImplementedError

    def optimizer_step(self):
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
