"""An optimizer's state as arrays, under the numbers of its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from unifiedamp.backend import errors

from ..device.arrays import whole

NUMBER = "#number"
"""Ends the name of a state that is a Python number, not a tensor."""


def read(optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
    """Return "3/momentum_buffer" → array; None where a state is neither tensor nor number (LBFGS)."""
    found: dict[str, Any] = {}
    for index, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            if value is None:
                continue
            if not isinstance(value, torch.Tensor | bool | int | float) or isinstance(value, bool):
                return None
            key = f"{index}/{name}"
            if isinstance(value, torch.Tensor):
                found[key] = _array(value)
            else:
                found[key + NUMBER] = np.asarray(value)
    return found


def _array(tensor: torch.Tensor) -> Any:
    # numpy has no bfloat16, and float32 holds each 16-bit value.
    values = whole(tensor).detach()
    return values.to("cpu", torch.float32 if values.dtype.itemsize == 2 else values.dtype, copy=True).numpy()


def check(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Check that a state is of these parameters.

    Raises:
        CheckpointError: a number or shape is of no parameter.
    """
    shapes = [tuple(param.shape) for group in optimizer.param_groups for param in group["params"]]
    for name, value in state.items():
        index, slash, key = name.partition("/")
        if not slash or not key or not index.isdecimal() or int(index) >= len(shapes):
            raise errors.CheckpointError(f"the optimizer has {len(shapes)} parameters, none for the state {name!r}")
        wanted = shapes[int(index)]
        same = len(value.shape) == len(wanted) and all(
            one in (1, other) for one, other in zip(value.shape, wanted, strict=True)
        )
        if value.shape and not same:
            raise errors.CheckpointError(f"the optimizer's {name!r} has shape {value.shape}, its parameter {wanted}")


def write(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Set the state; ``param_groups`` stay as they are."""
    found: dict[int, dict[str, Any]] = {}
    for name, value in state.items():
        index, _, key = name.partition("/")
        number = key.endswith(NUMBER)
        each = value.item() if number else torch.from_numpy(np.array(value))
        found.setdefault(int(index), {})[key.removesuffix(NUMBER)] = each
    optimizer.load_state_dict({"state": found, "param_groups": optimizer.state_dict()["param_groups"]})
