"""What rounding to bfloat16 left out of a session's parameters: the compensations of ``update="kahan"``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from .bfloat16_rounding import kahan_split
from .gradients import local_part


@dataclass
class Compensation:
    """The compensation of one parameter.

    Attributes:
        param: the parameter.
        rest: bfloat16, of its shape: the true weight is their sum.
        version: the parameter's version when this was set; a different one means that the parameter was written to
            otherwise (``load_state_dict``, weight clipping), and that nothing is left out of it.
    """

    param: torch.Tensor
    rest: torch.Tensor
    version: int


class Compensations:
    """The compensations of a session's bfloat16 parameters, by parameter.

    Args:
        in_use: the session compensates; without, parameters are their own true weights.
    """

    def __init__(self, in_use: bool) -> None:
        self.in_use = in_use
        self._all: dict[int, Compensation] = {}

    def of(self, param: torch.Tensor) -> torch.Tensor | None:
        """Return a parameter's compensation, bfloat16; None where it has none, or was written to since."""
        found = self._all.get(id(param))
        if found is None or found.version != version_of(param):
            return None
        return found.rest

    def true(self, param: torch.Tensor) -> torch.Tensor:
        """Return a parameter's true weights: a float32 sum where it has a compensation, else the parameter itself."""
        rest = self.of(param)
        return param if rest is None else param.detach().float() + rest

    @torch.no_grad()
    def split(self, param: torch.Tensor, values: torch.Tensor) -> None:
        """Set a bfloat16 parameter and its compensation to float32 values."""
        weight, rest = kahan_split(local_part(values))
        local_part(param).copy_(weight)
        self.put(param, rest)

    def put(self, param: torch.Tensor, rest: torch.Tensor | None) -> None:
        """Set a parameter's compensation, of this process's part of it; None for none."""
        if rest is None:
            self._all.pop(id(param), None)
            return
        found = self._all.get(id(param))
        if found is None:
            found = self._all[id(param)] = Compensation(param, torch.empty_like(param, requires_grad=False), 0)
        local_part(found.rest).copy_(rest)
        found.version = version_of(param)

    def accept(self, param: torch.Tensor) -> None:
        """Note that a parameter and its compensation were set together."""
        self._all[id(param)].version = version_of(param)

    def drop_stale(self) -> None:
        """Set compensations of parameters that were written to otherwise to zero, where a captured step reads them."""
        for each in self._all.values():
            if each.version != version_of(each.param):
                each.rest.zero_()
                each.version = version_of(each.param)

    def writes(self, param: torch.Tensor) -> bool:
        """Return whether values of a parameter are split."""
        return self.in_use and param.dtype is torch.bfloat16

    def all(self) -> Mapping[int, torch.Tensor]:
        """Return id of a parameter → its compensation, of those that hold."""
        return {key: each.rest for key, each in self._all.items() if each.version == version_of(each.param)}


def version_of(param: torch.Tensor) -> int:
    """Return what changes when a parameter, or this process's part of it, is written to."""
    param = local_part(param)
    return param._version
