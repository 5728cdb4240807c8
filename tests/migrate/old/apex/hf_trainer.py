"""A fine-tuning script of 2020: Apex behind --fp16, accumulation, clipping by master_params, one group without decay."""

import argparse

import torch
from torch import nn


def train_loop(args, batches, model):
    no_decay = ["bias"]
    grouped = [
        {"params": [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)], "weight_decay": 0.1},
        {"params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(grouped, lr=args.learning_rate)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    if args.fp16:
        try:
            from apex import amp
        except ImportError:
            raise ImportError("Please install apex from https://www.github.com/nvidia/apex to use fp16 training.")
        model, optimizer = amp.initialize(model, optimizer, opt_level=args.fp16_opt_level)

    model.zero_grad()
    tr_loss = 0.0
    for step, (x, y) in enumerate(batches):
        model.train()
        inputs = {"x": x, "y": y}
        outputs = model(**inputs)
        loss = outputs[0]  # model outputs are always tuple in transformers
        if args.n_gpu > 1:
            loss = loss.mean()
        if args.gradient_accumulation_steps > 1:
            loss = loss / args.gradient_accumulation_steps

        if args.fp16:
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            loss.backward()

        tr_loss += loss.item()
        if (step + 1) % args.gradient_accumulation_steps == 0:
            if args.fp16:
                torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), args.max_grad_norm)
            else:
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
            optimizer.step()
            scheduler.step()  # Update learning rate schedule
            model.zero_grad()
    return model


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(8, 16)
        self.out = nn.Linear(16, 1)

    def forward(self, x, y):
        logits = self.out(torch.tanh(self.hidden(x)))
        return nn.functional.mse_loss(logits, y), logits


def train(flag):
    torch.manual_seed(0)
    args = argparse.Namespace(fp16=flag, fp16_opt_level="O1", learning_rate=0.05, n_gpu=1, max_grad_norm=0.5)
    args.gradient_accumulation_steps = 2
    batches = [(torch.randn(16, 8), torch.randn(16, 1)) for _ in range(8)]
    model = train_loop(args, batches, Net())
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
