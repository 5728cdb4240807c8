"""``amp.compile``: torch.compile of a whole step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


@functools.cache
def _leave_layer_uncompiled() -> None:
    """Have dynamo run the layer's own Python as it is: its counters would be guarded on, and retraced at each step."""
    from torch._dynamo import trace_rules

    for package in ("unifiedamp", "unifiedamp_torch"):
        trace_rules.add(package)


def compile_step(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``torch.compile(fn)``."""
    _leave_layer_uncompiled()
    return torch.compile(fn)
