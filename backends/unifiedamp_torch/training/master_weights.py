"""Float32 master weights: what an optimizer trains where the model's own parameters have 16 bits.

A master parameter takes its model parameter's place in the optimizer's groups. Gradients are copied from the model
parameter to the master after each backward pass, weights from the master to the model parameter after each step.
Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from .compensations import Compensations
from .gradients import local_part, parameters

Optimizer = torch.optim.Optimizer
LOW = (torch.float16, torch.bfloat16)


class Kept(NamedTuple):
    """Copies of a model's parameter, of its master and of its compensation; None without one."""

    model_param: torch.Tensor
    master: torch.Tensor | None
    rest: torch.Tensor | None = None


@dataclass
class Pair:
    """A model's 16-bit parameter and its master.

    Attributes:
        version: the model parameter's version when it last held its master's value; a different version means that it
            was written to otherwise (``load_state_dict``, weight clipping), and the master must follow.
    """

    model_param: torch.Tensor
    master: torch.Tensor
    version: int

    def sync_master(self) -> None:
        """Copy to the master what was written to the model parameter since."""
        if self.model_param._version != self.version:
            self.master.copy_(self.model_param)
            self.version = self.model_param._version


class MasterWeights:
    """The master weights of one session, if any; each parameter of a model has one at most.

    Args:
        compensations: the session's, which parameters without masters may have.

    Attributes:
        in_use: the session has some, or may get some; without any, the calls of a step can be left out.
    """

    def __init__(self, compensations: Compensations) -> None:
        self._compensations = compensations
        self._pairs: dict[int, Pair] = {}
        self._of_master: dict[int, Pair] = {}
        self._frozen: dict[int, torch.Tensor] = {}
        self._updating: list[Pair] = []
        self.in_use = False

    def model_param(self, param: torch.Tensor) -> torch.Tensor:
        """Return the model's parameter of one of an optimizer's, which may be that parameter itself."""
        pair = self._of_master.get(id(param))
        return param if pair is None else pair.model_param

    def master(self, param: torch.Tensor) -> torch.Tensor:
        """Return what optimizers train in place of a model's parameter: its master, or itself."""
        pair = self._pairs.get(id(param))
        return param if pair is None else pair.master

    # -- setting up ----------------------------------------------------------------------------------------------

    def create(self, before: Mapping[torch.nn.Parameter, torch.Tensor]) -> None:
        """Create masters of the trainable 16-bit parameters among the keys.

        A frozen parameter gets its master once it is trainable and :meth:`attach` sees it in an optimizer.

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
        self.in_use = bool(self._pairs or self._frozen)

    def _thawed(self, param: torch.Tensor) -> Pair | None:
        if id(param) not in self._frozen or not param.requires_grad:
            return None
        return self._add(self._frozen.pop(id(param)), param.data)

    def _add(self, param: torch.Tensor, values: torch.Tensor) -> Pair:
        master = torch.nn.Parameter(values.detach().float())
        pair = Pair(param, master, param._version)
        self._pairs[id(param)] = self._of_master[id(master)] = pair
        return pair

    def match_layouts(self) -> None:
        """Convert masters to the layout of their model parameters, which fused kernels require."""
        for pair in self._pairs.values():
            if pair.master.stride() != pair.model_param.stride():
                pair.master.data = torch.empty_like(pair.model_param, dtype=torch.float32).copy_(pair.master.data)

    def attach(self, optimizers: Iterable[Optimizer]) -> None:
        """Put masters into the optimizers' groups, groups added since included, and sync them with the model."""
        if self.in_use:
            self._attach(optimizers)

    @torch.no_grad()
    def _attach(self, optimizers: Iterable[Optimizer]) -> None:
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
                    pair.sync_master()

    def detach(self, optimizers: Iterable[Optimizer]) -> None:
        """Put the models' own parameters back into the optimizers' groups, with their state."""
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for index, param in enumerate(group["params"]):
                    pair = self._of_master.get(id(param))
                    if pair is not None:
                        _move_state(optimizer, param, pair.model_param)
                        group["params"][index] = pair.model_param
                        pair.model_param.grad = None if param.grad is None else param.grad.to(pair.model_param.dtype)

    # -- one step ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def model_grads_to_master_grads(self, optimizer: Optimizer) -> None:
        """Add the gradients of the model's parameters to those of the masters, in float32, and drop the former."""
        fresh: list[tuple[torch.Tensor, torch.Tensor]] = []
        more: list[tuple[torch.Tensor, torch.Tensor]] = []
        for pair in self._of(optimizer):
            param, master = pair.model_param, pair.master
            if param.grad is None or not master.requires_grad:
                param.grad = None  # a trainer that freezes what its optimizer holds freezes the master
                continue
            if param.grad.is_sparse:
                grad = param.grad.float()
                master.grad = grad if master.grad is None else master.grad + grad
            elif master.grad is None:
                fresh.append((master, param.grad))
            else:
                more.append((master.grad, param.grad))
            param.grad = None
        copies = [torch.empty_like(master) for master, _ in fresh]
        _copy(copies, [grad for _, grad in fresh])
        for (master, _), copy in zip(fresh, copies, strict=True):
            master.grad = copy
        if more:
            torch._foreach_add_([total for total, _ in more], [grad.float() for _, grad in more])

    def begin_update(self, optimizer: Optimizer) -> None:
        """Note that the masters that have gradients are about to be updated."""
        self._updating = [pair for pair in self._of(optimizer) if pair.master.grad is not None]

    @torch.no_grad()
    def master_params_to_model_params(self) -> None:
        """Copy the masters that :meth:`begin_update` noted to the model's parameters; also after a skipped step."""
        if self._updating:
            _copy([pair.model_param for pair in self._updating], [pair.master for pair in self._updating])
            for pair in self._updating:
                pair.version = pair.model_param._version
            self._updating = []

    def zero_model_grads(self, optimizer: Optimizer) -> None:
        """Drop the gradients of the model's parameters."""
        for pair in self._of(optimizer):
            pair.model_param.grad = None

    def model_grads(self, optimizer: Optimizer) -> Iterator[torch.Tensor]:
        """Yield the gradients of the model's parameters that were not added to their masters yet."""
        return (pair.model_param.grad for pair in self._of(optimizer) if pair.model_param.grad is not None)

    def _of(self, optimizer: Optimizer) -> Iterator[Pair]:
        for param in parameters(optimizer) if self._pairs else ():
            pair = self._of_master.get(id(param))
            if pair is not None:
                yield pair

    # -- whole models --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def read(self, param: torch.Tensor) -> torch.Tensor:
        """Return a parameter's true weights in float32, or complex64."""
        pair = self._pairs.get(id(param))
        if pair is None:
            true = self._compensations.true(param).detach()
            return true.to(torch.complex64 if param.is_complex() else torch.float32)
        pair.sync_master()
        return pair.master.detach()

    @torch.no_grad()
    def write(self, param: torch.Tensor, values: torch.Tensor) -> None:
        """Set a parameter's true weights, and so the parameter."""
        if self._compensations.writes(param):
            self._compensations.split(param, values.to(torch.float32))
            return
        param.copy_(values)
        pair = self._pairs.get(id(param))
        if pair is not None:
            pair.master.copy_(values)
            pair.version = param._version

    @torch.no_grad()
    def keep(self, param: torch.Tensor) -> Kept:
        """Return copies of a parameter and of its master, where it has one."""
        pair = self._pairs.get(id(param))
        if pair is not None:
            pair.sync_master()
        rest = self._compensations.of(param)
        return Kept(
            param.detach().clone(),
            None if pair is None else pair.master.detach().clone(),
            None if rest is None else rest.clone(),
        )

    @torch.no_grad()
    def restore(self, param: torch.Tensor, kept: Kept) -> None:
        """Set a parameter and its master to what :meth:`keep` returned."""
        param.copy_(kept.model_param)
        self._compensations.put(param, None if kept.rest is None else local_part(kept.rest))
        pair = self._pairs.get(id(param))
        if pair is not None:
            pair.master.copy_(kept.model_param if kept.master is None else kept.master)
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


def _local(target: Any, source: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this process's parts of two DTensors that are sharded alike; other tensors unchanged."""
    if getattr(target, "placements", None) is None or target.placements != source.placements:
        return target, source
    return target.to_local(), source.to_local()
