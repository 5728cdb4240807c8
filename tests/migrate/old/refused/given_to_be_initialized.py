"""A trainer that initializes, and trains, what code that is not here gives its methods."""

from apex import amp


class Trainer:
    def start(self, model, optimizer):
        # Methods of other files look for it there.
        globals()["amp"] = amp
        model, optimizer = amp.initialize(model, optimizer, opt_level="O2")
        return model, optimizer

    def backward(self, loss, optimizer):
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()

    def fit(self, model, batches, criterion, optimizer):
        for x, target in batches:
            optimizer.zero_grad()
            outputs = model(x)
            loss = criterion(outputs, target)
            self.backward(loss, optimizer)
            optimizer.step()
