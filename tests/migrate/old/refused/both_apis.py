"""A trainer that takes Apex or torch's own AMP, and a TPU's step."""

import torch

try:
    from apex import amp
except ImportError:
    amp = None


class Trainer:
    def __init__(self, model, args):
        self.args, self.model = args, model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
        self.use_apex = args.fp16 and args.backend == "apex"
        self.use_amp = args.fp16 and not self.use_apex
        if self.use_amp:
            self.scaler = torch.cuda.amp.GradScaler()
        if self.use_apex:
            self.model, self.optimizer = amp.initialize(self.model, self.optimizer, opt_level=args.level)

    def training_step(self, batch):
        with torch.cuda.amp.autocast(enabled=self.use_amp):
            loss = self.model(batch).mean()
        if self.use_amp:
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
        elif self.use_apex:
            with amp.scale_loss(loss, self.optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            loss.backward()
        if self.args.tpu:
            xm.optimizer_step(self.optimizer)  # noqa: F821
        elif self.use_amp:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        self.model.zero_grad()
