"""Self-distillation: other code groups the parameters and restores the checkpoint; an elif chain picks the optimizer."""

import argparse
import types

import torch
import torch.nn as nn


def _params_groups(model):
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    plain = {"params": [p for name, p in named if name.endswith(".bias")], "weight_decay": 0.0}
    return [{"params": [p for name, p in named if not name.endswith(".bias")]}, plain]


def _restart_from_checkpoint(path, **kwargs):
    state = {"optimizer": kwargs["optimizer"].state_dict()}
    if kwargs["fp16_scaler"] is not None:
        state["fp16_scaler"] = kwargs["fp16_scaler"].state_dict()
    for key, value in kwargs.items():
        if key in state and value is not None:
            value.load_state_dict(state[key])


utils = types.SimpleNamespace()
setattr(utils, "get_params_groups", _params_groups)
setattr(utils, "restart_from_checkpoint", _restart_from_checkpoint)


def run(args):
    student, teacher = nn.Linear(6, 4), nn.Linear(6, 4)
    teacher.load_state_dict(student.state_dict())
    for p in teacher.parameters():
        p.requires_grad = False
    params_groups = utils.get_params_groups(student)
    if args.optimizer == "adamw":
        optimizer = torch.optim.AdamW(params_groups, lr=0.01)
    elif args.optimizer == "sgd":
        optimizer = torch.optim.SGD(params_groups, lr=0.1, momentum=0.9)
    fp16_scaler = None
    if args.use_fp16:
        fp16_scaler = torch.cuda.amp.GradScaler(init_scale=256.0)
    utils.restart_from_checkpoint("checkpoint.pth", optimizer=optimizer, fp16_scaler=fp16_scaler)
    for _ in range(2):
        one_epoch(student, teacher, [torch.randn(8, 6) for _ in range(3)], optimizer, fp16_scaler)
    return student


def one_epoch(student, teacher, batches, optimizer, fp16_scaler):
    for x in batches:
        with torch.cuda.amp.autocast(fp16_scaler is not None):
            target = teacher(x)
            loss = (student(x + 0.1) - target).pow(2).mean()
        optimizer.zero_grad()
        if fp16_scaler is None:
            loss.backward()
            optimizer.step()
        else:
            fp16_scaler.scale(loss).backward()
            fp16_scaler.step(optimizer)
            fp16_scaler.update()
        with torch.no_grad():
            for q, k in zip(student.parameters(), teacher.parameters()):
                k.data.mul_(0.9).add_(0.1 * q.detach().data)


def train(flag):
    torch.manual_seed(27)
    student = run(argparse.Namespace(optimizer="sgd", use_fp16=flag))
    return [w for p in student.parameters() for w in p.detach().flatten().tolist()]
