"""A trainer whose clipping is a function that it was given, over the parameters that Apex's optimizer trains."""

import functools

import torch

try:
    from apex import amp

    amp.register_half_function(torch, "einsum")
except ImportError:
    pass


class TrainManager:
    def __init__(self, model, fp16):
        self.model = model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.3)
        self.clip_grad_fun = functools.partial(torch.nn.utils.clip_grad_norm_, max_norm=0.3)
        self.batch_multiplier = 2
        self.fp16 = fp16
        if self.fp16:
            self.model, self.optimizer = amp.initialize(self.model, self.optimizer, opt_level="O1", loss_scale=128.0)

    def train_and_validate(self, batches):
        for i, batch in enumerate(batches):
            self._train_step(batch)
            if (i + 1) % self.batch_multiplier == 0:
                if self.clip_grad_fun is not None:
                    if self.fp16:
                        self.clip_grad_fun(parameters=amp.master_params(self.optimizer))
                    else:
                        self.clip_grad_fun(parameters=self.model.parameters())
                self.optimizer.step()
                self.optimizer.zero_grad()

    def _train_step(self, batch):
        self.model.train()
        batch_loss = self.model(batch).pow(2).mean()
        norm_batch_loss = batch_loss / self.batch_multiplier
        if self.fp16:
            with amp.scale_loss(norm_batch_loss, self.optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            norm_batch_loss.backward()


def train(flag):
    torch.manual_seed(8)
    manager = TrainManager(torch.nn.Linear(4, 2), flag)
    manager.train_and_validate([torch.randn(8, 4) for _ in range(6)])
    return [w for p in manager.model.parameters() for w in p.detach().flatten().tolist()]
