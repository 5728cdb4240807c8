"""Swin's main loop: an opt level O0 turns Apex off; norms are read where nothing is clipped."""

import argparse

import torch

try:
    from apex import amp
except ImportError:
    amp = None


def get_grad_norm(parameters, norm_type=2):
    parameters = [p for p in parameters if p.grad is not None]
    total = 0
    for p in parameters:
        total += p.grad.data.norm(norm_type).item() ** norm_type
    return total ** (1.0 / norm_type)


def train_one_epoch(config, model, criterion, data_loader, optimizer, lr_scheduler):
    model.train()
    optimizer.zero_grad()
    for idx, (samples, targets) in enumerate(data_loader):
        outputs = model(samples)
        if config.ACCUMULATION_STEPS > 1:
            loss = criterion(outputs, targets)
            loss = loss / config.ACCUMULATION_STEPS
            if config.AMP_OPT_LEVEL != "O0":
                with amp.scale_loss(loss, optimizer) as scaled_loss:
                    scaled_loss.backward()
                if config.CLIP_GRAD:
                    grad_norm = torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), config.CLIP_GRAD)
                else:
                    grad_norm = get_grad_norm(amp.master_params(optimizer))
            else:
                loss.backward()
                if config.CLIP_GRAD:
                    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.CLIP_GRAD)
                else:
                    grad_norm = get_grad_norm(model.parameters())
            if (idx + 1) % config.ACCUMULATION_STEPS == 0:
                optimizer.step()
                optimizer.zero_grad()
                lr_scheduler.step()
        else:
            loss = criterion(outputs, targets)
            optimizer.zero_grad()
            if config.AMP_OPT_LEVEL != "O0":
                with amp.scale_loss(loss, optimizer) as scaled_loss:
                    scaled_loss.backward()
                if config.CLIP_GRAD:
                    grad_norm = torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), config.CLIP_GRAD)
                else:
                    grad_norm = get_grad_norm(amp.master_params(optimizer))
            else:
                loss.backward()
                if config.CLIP_GRAD:
                    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.CLIP_GRAD)
                else:
                    grad_norm = get_grad_norm(model.parameters())
            optimizer.step()
            lr_scheduler.step()
        assert grad_norm >= 0


def train(flag):
    torch.manual_seed(1)
    config = argparse.Namespace(AMP_OPT_LEVEL="O1" if flag else "O0", ACCUMULATION_STEPS=1, CLIP_GRAD=0.5)
    if config.AMP_OPT_LEVEL != "O0":
        assert amp is not None, "amp not installed!"
    model = torch.nn.Linear(6, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    if config.AMP_OPT_LEVEL != "O0":
        model, optimizer = amp.initialize(model, optimizer, opt_level=config.AMP_OPT_LEVEL)
    lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    loader = [(torch.randn(8, 6), torch.randint(0, 4, (8,))) for _ in range(4)]
    train_one_epoch(config, model, torch.nn.CrossEntropyLoss(), loader, optimizer, lr_scheduler)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
