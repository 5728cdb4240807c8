"""Two methods make optimizer and scaler; a third calls them, the optimizer's first."""

import torch


class Experiment:
    def __init__(self, flag):
        self.flag = flag
        self.model = torch.nn.Linear(4, 2)

    def set_optimizer(self):
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)

    def set_scaler(self):
        self.scaler = torch.cuda.amp.GradScaler(init_scale=256.0, enabled=self.flag)

    def fit(self, batches):
        self.set_optimizer()
        self.set_scaler()
        for inputs, targets in batches:
            with torch.cuda.amp.autocast(enabled=self.flag):
                loss = torch.nn.functional.mse_loss(self.model(inputs).float(), targets)
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()


def train(flag):
    torch.manual_seed(29)
    experiment = Experiment(flag)
    experiment.fit([(torch.randn(5, 4), torch.randn(5, 2)) for _ in range(4)])
    return [w for p in experiment.model.parameters() for w in p.detach().flatten().tolist()]
