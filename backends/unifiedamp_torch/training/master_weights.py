"""Float32 master weights: what an optimizer trains where the model's own parameters have 16 bits.

A master takes its parameter's place in the optimizer's groups. Gradients go from the parameter to the master after each
backward pass, weights from the master to the parameter after each step. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from .gradients import parameters

Optimizer = torch.optim.Optimizer
LOW = (torch.float16, torch.bfloat16)


@dataclass
class Pair:
    """A model's 16-bit parameter and its master.

    Attributes:
        version: the parameter's version when it last held its master's value; another one means that someone else wrote
            to it (``load_state_dict``, weight clipping), and the master follows.
    """

    low: torch.Tensor
    master: torch.Tensor
    version: int

    def adopt(self) -> None:
        """Have the master follow what was written to the parameter by others."""
        if self.low._version != self.version:
            self.master.copy_(self.low)
            self.version = self.low._version


class Masters:
    """The masters of one session, none where none are wanted; each parameter of a model has one at most."""

    def __init__(self) -> None:
        self._pairs: dict[int, Pair] = {}
        self._of_master: dict[int, Pair] = {}
        self._frozen: dict[int, torch.Tensor] = {}
        self._changing: list[Pair] = []

    def low(self, param: torch.Tensor) -> torch.Tensor:
        """Return the model's parameter behind one of an optimizer's, which may be that parameter itself."""
        pair = self._of_master.get(id(param))
        return param if pair is None else pair.low

    # -- setting up ----------------------------------------------------------------------------------------------

    def take(self, before: Mapping[torch.Tensor, torch.Tensor]) -> None:
        """Make masters for the trainable parameters among the keys that have 16 bits.

        A frozen one gets its master when an optimizer that has it is met with it unfrozen.

        Args:
            before: parameter → its values before it was cast, which become the master where they are float32.
        """
        for param, values in before.items():
            if param.dtype not in LOW or id(param) in self._pairs:
                continue
            if param.requires_grad:
                self._add(param, values)
            else:
                self._frozen[id(param)] = param

    def _thawed(self, param: torch.Tensor) -> Pair | None:
        if id(param) not in self._frozen or not param.requires_grad:
            return None
        return self._add(self._frozen.pop(id(param)), param.data)

    def _add(self, param: torch.Tensor, values: torch.Tensor) -> Pair:
        master = torch.nn.Parameter(values.detach().float())
        pair = Pair(param, master, param._version)
        self._pairs[id(param)] = self._of_master[id(master)] = pair
        return pair

    def align(self) -> None:
        """Give masters the layout of their parameters, which fused kernels ask for."""
        for pair in self._pairs.values():
            if pair.master.stride() != pair.low.stride():
                pair.master.data = torch.empty_like(pair.low, dtype=torch.float32).copy_(pair.master.data)

    def enter(self, optimizers: Iterable[Optimizer]) -> None:
        """Put masters into the optimizers' groups (also into groups added since), and have them follow other writes."""
        if self._pairs or self._frozen:
            self._enter(optimizers)

    @torch.no_grad()
    def _enter(self, optimizers: Iterable[Optimizer]) -> None:
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                params = group["params"]
                for index, param in enumerate(params):
                    pair = self._of_master.get(id(param))
                    if pair is None:
                        pair = self._pairs.get(id(param)) or self._thawed(param)
                        if pair is None:
                            continue
                        _move_state(optimizer, param, pair.master)
                        params[index] = pair.master
                    pair.adopt()

    def leave(self, optimizers: Iterable[Optimizer]) -> None:
        """Put the models' own parameters back into the optimizers' groups, with their state."""
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for index, param in enumerate(group["params"]):
                    pair = self._of_master.get(id(param))
                    if pair is not None:
                        _move_state(optimizer, param, pair.low)
                        group["params"][index] = pair.low
                        pair.low.grad = None if param.grad is None else param.grad.to(pair.low.dtype)

    # -- one step ------------------------------------------------------------------------------------------------

    def carry(self, optimizer: Optimizer) -> None:
        """Add the gradients of the model's parameters to those of the masters, in float32, and empty the former."""
        if self._pairs:
            self._carry(optimizer)

    @torch.no_grad()
    def _carry(self, optimizer: Optimizer) -> None:
        fresh: list[tuple[torch.Tensor, torch.Tensor]] = []
        more: list[tuple[torch.Tensor, torch.Tensor]] = []
        for pair in self._of(optimizer):
            low, master = pair.low, pair.master
            if low.grad is None:
                continue
            if low.grad.is_sparse:
                grad = low.grad.float()
                master.grad = grad if master.grad is None else master.grad + grad
            elif master.grad is None:
                fresh.append((master, low.grad))
            else:
                more.append((master.grad, low.grad))
            low.grad = None
        copies = [torch.empty_like(master) for master, _ in fresh]
        _copy(copies, [grad for _, grad in fresh])
        for (master, _), copy in zip(fresh, copies, strict=True):
            master.grad = copy
        if more:
            torch._foreach_add_([total for total, _ in more], [grad.float() for _, grad in more])

    def begin_update(self, optimizer: Optimizer) -> None:
        """Note that the masters that have gradients are about to change."""
        if self._pairs:
            self._changing = [pair for pair in self._of(optimizer) if pair.master.grad is not None]

    def republish(self) -> None:
        """Copy the masters that were about to change to the model's parameters; also right after a skipped step."""
        if self._changing:
            self._publish(self._changing)
            self._changing = []

    @torch.no_grad()
    def _publish(self, pairs: Sequence[Pair]) -> None:
        _copy([pair.low for pair in pairs], [pair.master for pair in pairs])
        for pair in pairs:
            pair.version = pair.low._version

    def drop(self, optimizer: Optimizer) -> None:
        """Let go of the gradients of the model's parameters."""
        for pair in self._of(optimizer):
            pair.low.grad = None

    def low_gradients(self, optimizer: Optimizer) -> Iterator[torch.Tensor]:
        """Yield the gradients that the model's parameters have, and their masters not yet."""
        return (pair.low.grad for pair in self._of(optimizer) if pair.low.grad is not None)

    def _of(self, optimizer: Optimizer) -> Iterator[Pair]:
        if self._pairs:
            known = self._of_master
            for param in parameters(optimizer):
                pair = known.get(id(param))
                if pair is not None:
                    yield pair

    # -- whole models --------------------------------------------------------------------------------------------

    def pairs(self) -> Iterable[Pair]:
        """Return all pairs."""
        return self._pairs.values()

    @torch.no_grad()
    def read(self, param: torch.Tensor) -> torch.Tensor:
        """Return a parameter's true weights in float32, or complex64."""
        pair = self._pairs.get(id(param))
        if pair is None:
            return param.detach().to(torch.complex64 if param.is_complex() else torch.float32)
        pair.adopt()
        return pair.master.detach()

    @torch.no_grad()
    def write(self, param: torch.Tensor, values: torch.Tensor) -> None:
        """Set a parameter's true weights, and so the parameter."""
        param.copy_(values)
        pair = self._pairs.get(id(param))
        if pair is not None:
            pair.master.copy_(values)
            pair.version = param._version


def _move_state(optimizer: Optimizer, old: torch.Tensor, new: torch.Tensor) -> None:
    """Give ``new`` the state of ``old``; what is interrupted is completed by another call."""
    if old not in optimizer.state:
        return
    state = optimizer.state[old]
    for name, value in state.items():
        moments = isinstance(value, torch.Tensor) and value.shape == new.shape and value.is_floating_point()
        if moments and name != "step":
            state[name] = value.to(new.dtype)
    optimizer.state[new] = state
    del optimizer.state[old]


def _copy(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy lists of tensors; those of one device and one pair of dtypes go in one call, which is one kernel."""
    kinds: dict[tuple[torch.device, torch.dtype, torch.dtype], tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for whole_target, whole_source in zip(targets, sources, strict=True):
        target, source = _local(whole_target, whole_source)
        into, out_of = kinds.setdefault((target.device, target.dtype, source.dtype), ([], []))
        into.append(target)
        out_of.append(source)
    for into, out_of in kinds.values():
        torch._foreach_copy_(into, out_of)


def _local(target: torch.Tensor, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what lies on this process of two DTensors that are sharded alike; other tensors as they are."""
    if getattr(target, "placements", None) is None or target.placements != source.placements:
        return target, source
    return target.to_local(), source.to_local()
