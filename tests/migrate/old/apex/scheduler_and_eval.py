"""Phases of training and evaluation in one loop, gradients enabled for one of them."""

import torch
from apex import amp


def train(flag):
    torch.manual_seed(18)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    if flag:
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    data = {phase: [(torch.randn(6, 5), torch.randint(0, 2, (6,))) for _ in range(3)] for phase in ("train", "val")}
    for _ in range(2):
        for phase in ("train", "val"):
            model.train(phase == "train")
            for inputs, labels in data[phase]:
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    outputs = model(inputs)
                    _, preds = torch.max(outputs, 1)
                    loss = criterion(outputs, labels)
                    if phase == "train":
                        if flag:
                            with amp.scale_loss(loss, optimizer) as scaled_loss:
                                scaled_loss.backward()
                        else:
                            loss.backward()
                        optimizer.step()
        scheduler.step()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
