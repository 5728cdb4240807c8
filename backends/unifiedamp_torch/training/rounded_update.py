"""The update of one parameter by Adam, AdamW or SGD, and its rounding, as one formula over tensors on the device.

Compiled it is one kernel per parameter, that reads and writes each number once. It has no part on the host: counts,
settings and whether the step is skipped are tensors, so that it can be captured in a CUDA graph. Rounding is arithmetic
on bits, because Inductor may drop a cast to bfloat16 and back.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import NamedTuple

import torch

from unifiedamp.backend import rounding

from .bfloat16_rounding import noise

NUMBERS = ("lr", "step_size", "root", "decay", "one_minus_beta1", "beta2", "one_minus_beta2", "eps")
"""The settings of a step, float32: ``step_size`` is the learning rate divided by ``1 - beta1**step``, ``root`` the
square root of ``1 - beta2**step``; SGD has its momentum in ``step_size`` and ``1 - dampening`` in ``root``.
"""


class Rule(NamedTuple):
    """What an update is compiled for.

    Attributes:
        kind: "Adam", "AdamW" or "SGD".
        nesterov, maximize: the optimizer's.
    """

    kind: str
    nesterov: bool = False
    maximize: bool = False


class Operands(NamedTuple):
    """One parameter's tensors, contiguous and of one dimension.

    Attributes:
        param: bfloat16, rounded stochastically unless there is a compensation; or float32.
        rest: its compensation, bfloat16; None without.
        grad: its gradient.
        moments: two of Adam, one or none of SGD; bfloat16 ones are rounded stochastically.
        keys: int32: of the parameter and of its moments, see ``rounding.param_key``.
    """

    param: torch.Tensor
    rest: torch.Tensor | None
    grad: torch.Tensor
    moments: list[torch.Tensor]
    keys: torch.Tensor


def update_(rule: Rule, on: Operands, numbers: torch.Tensor, step: torch.Tensor, skip: torch.Tensor) -> None:
    """Update a parameter, its compensation and its moments in place, unless ``skip`` is above 0.

    Args:
        rule: of the optimizer.
        on: the tensors.
        numbers: float32, as :data:`NUMBERS`.
        step: the key of the step, int32 scalar, see ``rounding.step_key``.
        skip: float32 scalar.
    """
    lr, step_size, root, decay, rate1, beta2, rate2, eps = numbers.unbind()
    weight = on.param.float() if on.rest is None else on.param.float() + on.rest.float()
    grad = -on.grad.float() if rule.maximize else on.grad.float()
    if rule.kind == "AdamW":
        weight = weight - lr * decay * weight
    else:
        grad = grad + decay * weight
    moments = [each.float() for each in on.moments]
    if rule.kind == "SGD":
        if moments:
            moments = [moments[0] * step_size + grad * root]
            grad = grad + step_size * moments[0] if rule.nesterov else moments[0]
        weight = weight - lr * grad
    else:
        first = moments[0] + (grad - moments[0]) * rate1
        second = moments[1] * beta2 + grad * grad * rate2
        weight = weight - step_size * (first / (second.sqrt() / root + eps))
        moments = [first, second]
    pairs = enumerate(zip(on.moments, moments, strict=True))
    written = [(old, _kept(old, new, on, place, step)) for place, (old, new) in pairs]
    if on.rest is None:
        written.append((on.param, _kept(on.param, weight, on, -1, step)))
    else:
        written += zip((on.param, on.rest), kahan_split(weight), strict=True)
    for old, new in written:
        old.copy_(torch.where(skip > 0, old.float(), new))


def _kept(like: torch.Tensor, values: torch.Tensor, on: Operands, place: int, step: torch.Tensor) -> torch.Tensor:
    """Return values as a tensor keeps them, float32; ``place``: of a moment, or -1 for the parameter."""
    if like.dtype is not torch.bfloat16:
        return values
    bits = noise(values.numel(), on.keys[place + 1], step, 0, values.device) + values.view(torch.int32)
    return torch.where(values.isnan(), values, bits.bitwise_and(-(2**16)).view(torch.float32))


def nearest(values: torch.Tensor) -> torch.Tensor:
    """Return float32 values rounded to the nearest bfloat16, ties to even; float32."""
    bits = values.view(torch.int32)
    last = (bits >> 16).bitwise_and(1)
    rounded = (bits + last + 0x7FFF).bitwise_and(-(2**16)).view(torch.float32)
    return torch.where(values.isnan(), values, rounded)


def kahan_split(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``rounding.kahan_split``, float32."""
    weight = nearest(values)
    total = weight + nearest(values - weight)
    finite = total.isfinite()
    weight = torch.where(finite, nearest(total), weight)
    return weight, torch.where(finite, total - weight, 0.0)


def step_key(seed: int, count: torch.Tensor) -> torch.Tensor:
    """Return ``rounding.step_key`` of an int32 scalar."""
    start = rounding.fmix32(seed)
    mixed = count + (start - 2**32 if start >= 2**31 else start)
    for shift, factor in rounding.FMIX:
        mixed = mixed ^ (mixed >> shift).bitwise_and(2 ** (32 - shift) - 1)
        mixed = mixed * (factor - 2**32 if factor >= 2**31 else factor)
    return mixed


Update = Callable[[Operands, torch.Tensor, torch.Tensor, torch.Tensor], None]


@functools.cache
def compiled(rule: Rule, _dtypes: tuple[torch.dtype | None, ...]) -> Update:
    """Return the update of a rule, compiled by Inductor once for parameters of any size.

    Args:
        rule: of the optimizer.
        _dtypes: of the operands; each set gets its own function, since dynamo limits how often one is compiled.
    """

    def update(on: Operands, numbers: torch.Tensor, step: torch.Tensor, skip: torch.Tensor) -> None:
        update_(rule, on, numbers, step, skip)

    # A new code object: dynamo counts compilations by code.
    made = types.FunctionType(update.__code__.replace(), globals(), "rounded_update", None, update.__closure__)
    return torch.compile(made, dynamic=True, fullgraph=True)
