"""A package beside the script; models made and prepared in a class."""

import argparse

import lib.core as core
import torch
from apex import amp
from lib.core import checkpoint


class Runner:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = torch.nn.Linear(5, 2)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
        if cfg.fp16:
            self.model, self.optimizer = amp.initialize(self.model, self.optimizer, opt_level="O1")

    def run(self, loader):
        core.do_train(self.cfg, self.model, self.optimizer, loader)
        return checkpoint(self.cfg, self.model)


def train(flag):
    torch.manual_seed(6)
    state = Runner(argparse.Namespace(fp16=flag)).run([(torch.randn(8, 5), torch.randn(8, 2)) for _ in range(5)])
    assert ("amp" in state) == flag
    return [w for p in state["model"].values() for w in p.flatten().tolist()]
