"""The model; it knows nothing of AMP."""

import torch


def make():
    return torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.ReLU(), torch.nn.Linear(12, 4))
