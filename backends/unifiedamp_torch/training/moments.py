"""Optimizers' moments between steps, in the dtype of ``Policy.state_dtype``.

They stay in the optimizer's own state, under its own names: as bfloat16 tensors, or as float8 tensors with the
scales of their blocks beside them. ``optimizer.state_dict()`` holds the latter as bfloat16 tensors, which have the same
values and which any optimizer loads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch

from unifiedamp.backend import Policy, errors, state_rounding

from . import moment_rounding
from .bfloat16_rounding import stochastic_
from .gradients import is_sharded, local_part, parameters

Optimizer = torch.optim.Optimizer

_OF_ADAM = {"exp_avg": "first_moment", "exp_avg_sq": "second_moment", "max_exp_avg_sq": "max_second_moment"}
NAMES = {
    "Adam": _OF_ADAM, "AdamW": _OF_ADAM, "NAdam": _OF_ADAM, "RAdam": _OF_ADAM, "SGD": {"momentum_buffer": "momentum"},
}  # fmt: skip
"""Class of ``torch.optim`` → its name of a moment → ours."""

SCALES = "_scales"
"""Ends the name of what stands beside a float8 moment."""


class Moments:
    """The moments of a session's optimizers.

    Args:
        policy: the session's.
        name_of: returns a parameter's name.

    Attributes:
        in_use: the policy keeps them in fewer bits.
    """

    def __init__(self, policy: Policy, name_of: Callable[[torch.Tensor], str]) -> None:
        self._dtype, self._update, self._name_of = policy.state_dtype, policy.update, name_of
        self.in_use = self._dtype is not None

    def watch(self, optimizer: Optimizer) -> list[Callable[[], None]]:
        """Check an optimizer, and have its native state hold bfloat16 moments, and its copies moments in which they
        can step; return what ends that.

        Raises:
            PrepareError: its moments are not known, or cannot be kept.
        """
        if not (self.in_use or self._update):
            return []
        undo: list[Callable[[], Any]] = []
        if self.in_use:
            _check(optimizer, str(self._dtype))
            hook = optimizer.register_state_dict_post_hook(_export)
            undo = [hook.remove, lambda: self._release(optimizer)]
        vars(optimizer)["__getstate__"] = lambda: self._copied(optimizer)  # where copy and pickle look for it
        return [*undo, lambda: vars(optimizer).pop("__getstate__")]

    @torch.no_grad()
    def widen(self, optimizer: Optimizer, param: torch.Tensor) -> None:
        """Make the moments of a parameter float32, for a step."""
        state = optimizer.state.get(param, {})
        for name, value in [*state.items()]:
            if _is_moment(name, value, param):
                state[name] = _wide(state.pop(name + SCALES, None), value, name, optimizer, param)

    @torch.no_grad()
    def narrow(self, optimizer: Optimizer, param: torch.Tensor, step: int) -> None:
        """Round the moments of a parameter after a step; ``step``: the key of this step."""
        state = optimizer.state.get(param, {}) if self.in_use else {}
        for name, moment in NAMES.get(type(optimizer).__name__, {}).items():
            value = state.get(name)
            if value is None or not _is_moment(name, value, param):
                continue
            key = state_rounding.moment_key(self._name_of(param), moment)
            if self._dtype == "bfloat16":
                state[name] = torch.empty_like(value, dtype=torch.bfloat16)
                stochastic_(local_part(state[name]), local_part(value), key, step)
            else:
                squares = state_rounding.MOMENTS[moment]
                state[name], state[name + SCALES] = moment_rounding.pack(value, squares, key, step)

    def all(self, optimizer: Optimizer) -> Iterator[tuple[torch.Tensor, str, torch.Tensor]]:
        """Yield (parameter, our name of a moment, its values, float32) of an optimizer."""
        for param in parameters(optimizer):
            state = optimizer.state.get(param, {})
            for name, moment in self.names(optimizer).items():
                if _is_moment(name, state.get(name), param):
                    yield param, moment, _wide(state.get(name + SCALES), state[name], name, optimizer, param)

    def write(self, optimizer: Optimizer, param: torch.Tensor, name: str, values: torch.Tensor) -> None:
        """Set a moment, under torch's name, in float32 until the next step."""
        state = optimizer.state[param]
        state.pop(name + SCALES, None)
        known = state.get(name)
        if isinstance(known, torch.Tensor) and known.dtype is torch.bfloat16:  # which captured steps hold
            known.copy_(values)
        else:
            state[name] = values

    def names(self, optimizer: Optimizer) -> dict[str, str]:
        """Return torch's name of a moment → ours.

        Raises:
            UnsupportedError: the optimizer's moments are not known.
        """
        kind = type(optimizer)
        if kind.__name__ not in NAMES or not kind.__module__.startswith("torch.optim."):
            raise errors.UnsupportedError(
                f"the moments of this {kind.__name__} are not known; those of torch.optim's {', '.join(NAMES)} are"
            )
        return NAMES[kind.__name__]

    def nbytes(self, optimizer: Optimizer) -> int:
        """Return the bytes of an optimizer's moments, on this process."""
        names = {each + end for each in NAMES[type(optimizer).__name__] for end in ("", SCALES)}
        kept = [state[name] for state in optimizer.state.values() for name in names & state.keys()]
        return sum(local_part(each).nbytes for each in kept if isinstance(each, torch.Tensor))

    def _copied(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return what a copy of an optimizer is made of. No session rounds the copy's moments: they are float32, or
        where updates are rounded, of the parameter's dtype, as torch's own steps ask for.
        """
        state: dict[torch.Tensor, dict[str, Any]] = defaultdict(dict)
        for param, known in optimizer.state.items():
            for name, value in known.items():
                if _is_moment(name, value, param):
                    value = _wide(known.get(name + SCALES), value, name, optimizer, param)
                    value = value.to(param.dtype) if self._update else value
                if not name.endswith(SCALES):
                    state[param][name] = value
        native: dict[str, Any] = type(optimizer).__getstate__(optimizer)
        return {**native, "state": state}

    def _release(self, optimizer: Optimizer) -> None:
        for param in parameters(optimizer):
            self.widen(optimizer, param)


def _is_moment(name: str, value: Any, param: torch.Tensor) -> bool:
    kept = isinstance(value, torch.Tensor) and value.shape == param.shape and value.is_floating_point()
    return kept and name != "step" and not name.endswith(SCALES)


def _wide(
    scales: torch.Tensor | None, value: torch.Tensor, name: str, optimizer: Optimizer, param: torch.Tensor
) -> torch.Tensor:
    """Return a moment in float32; with scales, of a float8 tensor."""
    if scales is None:
        return value.float()
    squares = state_rounding.MOMENTS[NAMES[type(optimizer).__name__][name]]
    values = moment_rounding.unpack(value, scales, squares)
    return torch.empty_like(param, dtype=torch.float32, requires_grad=False).copy_(values)


def _export(optimizer: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """Return a native state with bfloat16 in place of float8 moments, which have at most 8 significant bits."""
    names = NAMES[type(optimizer).__name__]
    states = {}
    for key, state in saved["state"].items():
        states[key] = {name: value for name, value in state.items() if not name.endswith(SCALES)}
        for name in names:
            if name + SCALES in state:
                squares = state_rounding.MOMENTS[names[name]]
                values = moment_rounding.unpack(state[name], state[name + SCALES], squares)
                states[key][name] = values.to(torch.bfloat16)
    return {**saved, "state": states}


def _check(optimizer: Optimizer, dtype: str) -> None:
    kind = type(optimizer)
    if kind.__name__ not in NAMES or not kind.__module__.startswith("torch.optim."):
        raise errors.PrepareError(
            f"state_dtype={dtype!r}: the moments of this {kind.__name__} are not known; use one of torch.optim's "
            f"{', '.join(NAMES)}, or leave state_dtype out"
        )
    if dtype == "float8" and any(map(is_sharded, parameters(optimizer))):
        raise errors.PrepareError(
            "state_dtype='float8': blocks of 256 numbers do not follow the shards of fully_shard; use "
            "state_dtype='bfloat16'"
        )
