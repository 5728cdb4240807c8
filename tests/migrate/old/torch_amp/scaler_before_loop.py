"""A trainer in YOLOv6's shape: the optimizer is made at first, the scaler when training begins."""

import torch


class Trainer:
    def __init__(self, flag, epochs):
        self.device = "cuda" if flag else "cpu"
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        self.model = model
        self.epochs = epochs

    def train(self, batches):
        self.train_before_loop()
        for self.epoch in range(self.epochs):
            self.model.train()
            for self.step, self.batch in enumerate(batches):
                self.train_in_steps()

    def train_before_loop(self):
        self.scaler = torch.cuda.amp.GradScaler(init_scale=256.0, enabled=self.device != "cpu")
        self.compute_loss = torch.nn.MSELoss()

    def train_in_steps(self):
        images, targets = self.batch
        with torch.cuda.amp.autocast(enabled=self.device != "cpu"):
            total_loss = self.compute_loss(self.model(images).float(), targets)
        self.scaler.scale(total_loss).backward()
        self.update_optimizer()

    def update_optimizer(self):
        if self.step % 2 == 1:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()


def train(flag):
    torch.manual_seed(17)
    trainer = Trainer(flag, epochs=2)
    trainer.train([(torch.randn(4, 6), torch.randn(4, 2)) for _ in range(4)])
    return [w for p in trainer.model.parameters() for w in p.detach().flatten().tolist()]
