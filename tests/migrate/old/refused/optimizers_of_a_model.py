"""Optimizers come in a list from the model, and each is stepped in a loop of a function that is given the list."""

from torch.cuda.amp import GradScaler, autocast


class Trainer:
    def __init__(self, fp16):
        self.fp16 = fp16

    def run(self, model, loader):
        optimizers = model.setup_optimizers()
        scaler = GradScaler() if self.fp16 else None
        for batch in loader:
            self.train_step(model, batch, optimizers, scaler)

    def train_step(self, model, batch, optimizers, scaler):
        with autocast(enabled=self.fp16):
            loss = model(batch).mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        for optimizer in optimizers:
            if scaler is not None:
                scaler.step(optimizer)
            else:
                optimizer.step()
        if scaler is not None:
            scaler.update()
