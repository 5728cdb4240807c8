"""A library's class: a method that has no scaler makes the criterion, from the model's dtype."""

import torch
from torch.cuda.amp import GradScaler, autocast


def weights_of(model, counts):
    return torch.tensor(counts, dtype=next(model.parameters()).dtype) ** -1


class Classifier:
    def __init__(self, flag):
        self.flag = flag
        self.model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        self.criterion = torch.nn.CrossEntropyLoss()

    def calculate_weights(self, counts):
        return weights_of(self.model, counts)

    def train_model(self, batches):
        self.model.train()
        self.criterion = torch.nn.CrossEntropyLoss(weight=self.calculate_weights([4, 5, 6]))
        return self.loop(batches)

    def loop(self, batches):
        model = self.model
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        if self.flag:
            scaler = GradScaler()
        for inputs, labels in batches:
            if self.flag:
                with autocast():
                    loss = self.criterion(model(inputs), labels)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            else:
                loss = self.criterion(model(inputs), labels)
                loss.backward()
                optimizer.step()
            optimizer.zero_grad()


def train(flag):
    torch.manual_seed(22)
    classifier = Classifier(flag)
    classifier.train_model([(torch.randn(8, 6), torch.randint(0, 3, (8,))) for _ in range(4)])
    return [w for p in classifier.model.parameters() for w in p.detach().flatten().tolist()]
