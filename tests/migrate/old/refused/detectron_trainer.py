"""Detectron's AMPTrainer: the scaler is handed in or made; imports inside methods; a base class has the rest."""

import torch


class SimpleTrainer:
    def __init__(self, model, data_loader, optimizer):
        self.model, self.data_loader, self.optimizer = model, data_loader, optimizer
        self._data_loader_iter = iter(data_loader)

    def run_step(self):
        losses = sum(self.model(next(self._data_loader_iter)).values())
        self.optimizer.zero_grad()
        losses.backward()
        self.optimizer.step()


class AMPTrainer(SimpleTrainer):
    def __init__(self, model, data_loader, optimizer, grad_scaler=None):
        super().__init__(model, data_loader, optimizer)
        if grad_scaler is None:
            from torch.cuda.amp import GradScaler

            grad_scaler = GradScaler(init_scale=256.0)
        self.grad_scaler = grad_scaler

    def run_step(self):
        from torch.cuda.amp import autocast

        data = next(self._data_loader_iter)
        with autocast():
            loss_dict = self.model(data)
            losses = sum(loss_dict.values())
        self.optimizer.zero_grad()
        self.grad_scaler.scale(losses).backward()
        self.grad_scaler.step(self.optimizer)
        self.grad_scaler.update()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(6, 8), torch.nn.Linear(8, 2)

    def forward(self, x):
        out = self.head(self.body(x).relu())
        return {"loss_cls": out[:, 0].pow(2).mean(), "loss_box": (out[:, 1] - 1).pow(2).mean()}


def train(flag):
    torch.manual_seed(1)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = [torch.randn(8, 6) for _ in range(5)]
    trainer = (AMPTrainer if flag else SimpleTrainer)(model, loader, optimizer)
    for _ in range(5):
        trainer.run_step()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
