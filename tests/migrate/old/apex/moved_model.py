"""The model is moved to its device, and put in training mode, in the call of amp.initialize."""

import torch
from apex import amp


class Trainer:
    def __init__(self, fp16, device):
        self.fp16, self.device = fp16, device
        self.model = torch.nn.Linear(6, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        if fp16:
            self.model, self.optimizer = amp.initialize(
                self.model.to(self.device), self.optimizer, opt_level="O1", verbosity=0
            )

    def step(self, x, y):
        loss = torch.nn.functional.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        if self.fp16:
            with amp.scale_loss(loss, self.optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            loss.backward()
        self.optimizer.step()


def train(flag):
    torch.manual_seed(41)
    device = torch.device("cpu")
    x, y = torch.randn(12, 6), torch.randint(2, (12,))
    trainer = Trainer(flag, device)
    for _ in range(4):
        trainer.step(x, y)
    encoder, head = torch.nn.Linear(6, 4).eval(), torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=0.01)
    [encoder, head], optimizer = amp.initialize(
        [encoder.to(device).train(), head.float()], optimizer, opt_level="O1" if flag else "O0", verbosity=0
    )
    assert encoder.training
    for _ in range(4):
        loss = torch.nn.functional.cross_entropy(head(encoder(x)), y)
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
    parts = (trainer.model, encoder, head)
    return [w for part in parts for p in part.parameters() for w in p.detach().flatten().tolist()]
