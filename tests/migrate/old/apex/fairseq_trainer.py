"""A trainer with lazily built optimizer as a property, and gradients summed over several samples."""

import contextlib

import torch
from apex import amp


class Trainer:
    def __init__(self, args, model):
        self.args = args
        self._model = model
        self._optimizer = None

    @property
    def optimizer(self):
        if self._optimizer is None:
            self._build_optimizer()
        return self._optimizer

    def _build_optimizer(self):
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=0.01)
        if self.args["fp16"]:
            self._model, self._optimizer = amp.initialize(self._model, self._optimizer, opt_level="O1")

    def train_step(self, samples):
        self.optimizer.zero_grad()
        for i, sample in enumerate(samples):
            with contextlib.ExitStack():
                loss = self._model(sample).pow(2).mean() / len(samples)
                if self.args["fp16"]:
                    with amp.scale_loss(loss, self._optimizer) as scaled_loss:
                        scaled_loss.backward()
                else:
                    loss.backward()
        self._optimizer.step()


def train(flag):
    torch.manual_seed(5)
    model = torch.nn.Linear(5, 2)
    trainer = Trainer({"fp16": flag}, model)
    for _ in range(3):
        trainer.train_step([torch.randn(4, 5) for _ in range(2)])
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
