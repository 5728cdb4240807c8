"""What torch's autograd engine says of the running backward pass."""

from __future__ import annotations

import torch
from torch.autograd.graph import get_gradient_edge


def accumulates(param: torch.Tensor) -> bool:
    """Return whether the running backward pass adds to ``param.grad``; ``torch.autograd.grad`` does not."""
    if not param.requires_grad:
        return False
    if hasattr(param, "to_local"):
        return True  # FSDP differentiates other tensors in its place
    try:
        return bool(torch._C._will_engine_execute_node(get_gradient_edge(param).node))
    except RuntimeError:
        return False
