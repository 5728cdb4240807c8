"""Updates that are rounded on the device: whole steps without a part on the host, for GPUs and their graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from unifiedamp.backend import Policy, float32, rounding, state_rounding

from ..device.placement import steps_to_device
from .compensations import Compensations
from .compiled_update import compiles_in_this_thread
from .gradients import has_sparse, local_part, parameters
from .moments import NAMES, SCALES
from .rounded_update import NUMBERS, Operands, Rule, compiled, step_key, update_

Optimizer = torch.optim.Optimizer

KINDS = ("Adam", "AdamW", "SGD")
"""Classes of ``torch.optim`` that have a formula in ``rounded_update``."""


class Known(NamedTuple):
    """What is kept of one parameter: it, its keys on the device, and the dtypes that its update ran for."""

    param: torch.Tensor
    keys: torch.Tensor
    ran: set[tuple[torch.dtype | None, ...]]


class DeviceUpdates:
    """The updates of one session that run on the device.

    Args:
        policy: the session's.
        compensations: the session's.
        name_of: returns a parameter's name.
    """

    def __init__(
        self, policy: Policy, compensations: Compensations, name_of: Callable[[torch.Tensor], str]
    ) -> None:  # fmt: skip
        self._policy, self._compensations, self._name_of = policy, compensations, name_of
        self._known: dict[int, Known] = {}

    def why_not(self, optimizer: Optimizer) -> str:
        """Return why an optimizer's updates are not rounded on the device; empty where they are."""
        kind = type(optimizer)
        if self._policy.state_dtype == "float8":
            return "the host packs moments in float8; state_dtype='bfloat16' is rounded on the device"
        if kind.__name__ not in KINDS or not kind.__module__.startswith("torch.optim."):
            return (
                f"the host rounds the updates of {kind.__name__}; those of {', '.join(KINDS)} are rounded on the device"
            )
        if any(group.get("amsgrad") for group in optimizer.param_groups):
            return f"the host rounds the updates of {kind.__name__} with amsgrad=True"
        params = [param for param in parameters(optimizer) if param.grad is not None]
        if any(param.device.type not in ("cuda", "cpu") for param in params):
            return "the host rounds updates on this device"
        if has_sparse(optimizer) or any(param.is_complex() for param in params):
            return "the host rounds updates of sparse gradients and complex parameters"
        if any(not all(local_part(t).is_contiguous() for t in (each, each.grad) if t is not None) for each in params):
            return "the host rounds updates of parameters that are not contiguous (channels_last)"
        return ""

    def ready(self, optimizer: Optimizer, capturing: bool) -> bool:
        """Return whether all states exist that an update needs; ``capturing``: also all compiled kernels."""
        for group in optimizer.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                moments = self._moments(optimizer, group, param)
                if any(each is None for each in moments):
                    return False
                known = self._known.get(id(param))
                kept = self._policy.update != "kahan" or param.dtype is not torch.bfloat16
                kept = kept or self._compensations.of(param) is not None
                if capturing and not (known is not None and known.ran and kept):
                    return False
        return True

    @torch.no_grad()
    def run(self, optimizer: Optimizer, count: torch.Tensor, skip: torch.Tensor | None) -> None:
        """Update an optimizer's parameters that have gradients, and count.

        Args:
            optimizer: one that :meth:`why_not` and :meth:`ready` accept.
            count: its applied steps, int32 scalar on the device.
            skip: float32 scalar, above 0 where the step is skipped; None for none.
        """
        steps_to_device(optimizer)
        skip = torch.zeros((), device=count.device) if skip is None else skip
        step = step_key(self._policy.update_seed, count)
        for group in optimizer.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            if not params:
                continue
            rows = _numbers(optimizer, group, params, skip)
            rule = Rule(type(optimizer).__name__, bool(group.get("nesterov")), bool(group.get("maximize")))
            for param, row in zip(params, rows, strict=True):
                self._update(rule, self._operands(optimizer, group, param), param, row, step, skip)
        count.add_((skip <= 0).to(torch.int32))

    def _update(
        self, rule: Rule, on: Operands, param: torch.Tensor, row: torch.Tensor, step: torch.Tensor, skip: torch.Tensor
    ) -> None:
        dtypes = tuple([None if each is None else each.dtype for each in (on.param, on.rest, on.grad, *on.moments)])
        if param.device.type == "cuda" and compiles_in_this_thread():
            compiled(rule, dtypes)(on, row, step, skip)
        else:
            update_(rule, on, row, step, skip)
        self._known[id(param)].ran.add(dtypes)
        if on.rest is not None:
            self._compensations.accept(param)

    def _operands(self, optimizer: Optimizer, group: dict[str, Any], param: torch.Tensor) -> Operands:
        rest = None
        if self._policy.update == "kahan" and param.dtype is torch.bfloat16:
            rest = self._compensations.of(param)
            if rest is None:
                self._compensations.put(param, torch.zeros_like(local_part(param)))
                rest = self._compensations.of(param)
        names = NAMES[type(optimizer).__name__]
        known = self._known.get(id(param))
        if known is None or known.param is not param:
            keys = [rounding.param_key(self._name_of(param))]
            keys += [state_rounding.moment_key(self._name_of(param), each) for each in names.values()]
            signed = [key - 2**32 if key >= 2**31 else key for key in keys]
            known = Known(param, torch.tensor(signed, dtype=torch.int32, device=param.device), set())
            self._known[id(param)] = known
        moments = [_flat(each) for each in self._moments(optimizer, group, param) if each is not None]
        assert param.grad is not None
        return Operands(_flat(param), None if rest is None else _flat(rest), _flat(param.grad), moments, known.keys)

    def _moments(
        self, optimizer: Optimizer, group: dict[str, Any], param: torch.Tensor
    ) -> Sequence[torch.Tensor | None]:  # fmt: skip
        """Return the moments of a parameter; None for one that does not exist yet, or is to be rounded by the host."""
        wanted = list(NAMES[type(optimizer).__name__])[:2] if group.get("momentum", 1) else []
        state = optimizer.state.get(param, {})
        wide = torch.bfloat16 if self._policy.state_dtype else torch.float32
        return [
            each if isinstance(each := state.get(name), torch.Tensor) and each.dtype is wide else None
            for name in wanted
            if name + SCALES not in state
        ]


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return local_part(tensor.detach()).view(-1)


def _numbers(
    optimizer: Optimizer, group: dict[str, Any], params: Sequence[torch.Tensor], skip: torch.Tensor
) -> Sequence[torch.Tensor]:
    """Return the numbers of each parameter's update; counts the steps of Adam."""
    lr, device = group["lr"], skip.device
    lr = lr if isinstance(lr, torch.Tensor) else float32(lr)  # as a captured step reads it
    values: dict[str, Any] = {"lr": lr, "decay": group["weight_decay"], "eps": group.get("eps", 0.0)}
    if "betas" in group:
        beta1, beta2 = group["betas"]
        steps = [optimizer.state[param]["step"] for param in params]
        torch._foreach_add_(steps, [1 - skip.to(steps[0].dtype)] * len(steps))
        count = torch.stack([local_part(each) for each in steps]).double()
        values |= {"step_size": lr / (1 - beta1**count), "root": (1 - beta2**count).sqrt()}
        values |= {"one_minus_beta1": 1 - beta1, "beta2": beta2, "one_minus_beta2": 1 - beta2}
    else:
        values |= {"step_size": group["momentum"], "root": 1 - group["dampening"]}
    table = torch.zeros(len(params), len(NUMBERS), device=device)
    for place, name in enumerate(NUMBERS):
        value = values.get(name, 0.0)
        if isinstance(value, torch.Tensor):
            table[:, place].copy_(value)
        elif value:
            table[:, place].fill_(value)
    return table.unbind()
