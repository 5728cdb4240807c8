"""Runs the detection trainer."""

import argparse

import torch
from detect import DetectionTrainer


def train(flag):
    torch.manual_seed(3)
    trainer = DetectionTrainer(argparse.Namespace(amp=flag))
    trainer.train([(torch.randn(8, 6), torch.randn(8, 4)) for _ in range(6)])
    return [w for p in trainer.model.parameters() for w in p.detach().flatten().tolist()]
