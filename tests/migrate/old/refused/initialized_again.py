"""A trainer that initializes in one method, and again in another one where a checkpoint has amp's state."""

import torch
from apex import amp


class Trainer:
    def __init__(self, model, config):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.config = config

    def start(self):
        if self.config.fp16:
            self.model, self.optimizer = amp.initialize(self.model, self.optimizer, opt_level="O1")

    def restore(self, state):
        if "amp" in state:
            self.model, self.optimizer = amp.initialize(self.model, self.optimizer, opt_level="O1")
            amp.load_state_dict(state["amp"])
        self.model.load_state_dict(state["model"])

    def fit(self, batches):
        for x in batches:
            self.optimizer.zero_grad()
            loss = self.model(x).sum()
            if self.config.fp16:
                with amp.scale_loss(loss, self.optimizer) as scaled_loss:
                    scaled_loss.backward()
            else:
                loss.backward()
            self.optimizer.step()
