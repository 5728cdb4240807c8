"""Refuses parameters that come into prepared models after ``prepare`` and that no optimizer has, which would not train,
or that neither ``DistributedDataParallel`` nor ``fully_shard`` reduces, which would train apart on each rank.

A step asks only whether layers changed since the last look. torch's registration hooks tell of what is assigned or
added to a module; ``insert`` and ``del`` of a container go past them, and change its length or its dict.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle

from unifiedamp.backend import errors

from ..distributed.wrapped import mesh_of, sharded, unreduced, world_size
from ..layer_paths import plain_name
from .gradients import parameters

Optimizer = torch.optim.Optimizer
_CONTAINERS = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)
_WRAP = (
    "DistributedDataParallel wrapped it, so their gradients are not reduced and each rank would train its own; wrap "
    "the complete model, and prepare that: amp.prepare(DistributedDataParallel(model.module), optimizer)"
)
_SHARD = (
    "fully_shard sharded it, so their gradients are not reduced and each rank would train its own; make the complete "
    "model before fully_shard and amp.prepare"
)


class _Before:
    """The parameters that a model had when it was prepared."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self._params = {name: weakref.ref(param) for name, param in model.named_parameters()}
        self._shards = {name for name, param in model.named_parameters() if mesh_of(param) is not None}
        self.sharded = sharded([model])

    def late(self, owned: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield those that came since; not those in the place of one that is not ``owned`` by an optimizer either."""
        before = {name: ref() for name, ref in self._params.items()}
        known = {id(param) for param in before.values() if param is not None}
        for name, param in self.model.named_parameters():
            if self.sharded:  # FSDP exchanges parameters under their names
                came = name not in before or (name in self._shards and mesh_of(param) is None)
            else:
                came = id(param) not in known and (name not in before or id(before[name]) in owned)
            if came:
                yield plain_name(name), param

    def unreduced(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield parameters that came since and that ``fully_shard`` did not shard, of a model of several ranks."""
        if self.sharded and world_size() > 1:
            yield from ((name, param) for name, param in self.late(set()) if mesh_of(param) is None)


class LateParams:
    """Follows which parameters the prepared models have.

    Args:
        optimizers: the session's; the list grows.
        model_param: returns the model's parameter of a master weight, and any other parameter unchanged.
    """

    def __init__(self, optimizers: list[Optimizer], model_param: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._version = 0
        self._optimizers, self._model_param = optimizers, model_param
        self._models: list[torch.nn.Module] = []
        self._before: list[_Before] = []
        self._modules: set[int] = set()
        self._containers: list[torch.nn.Module] = []
        self._seen: Hashable = None
        self._late: list[tuple[str, torch.Tensor]] = []
        self._unreduced: list[tuple[str, torch.Tensor, str]] = []

    def follow(self, models: Sequence[torch.nn.Module]) -> list[Callable[[], None]]:
        """Follow further models, with the parameters that they have now; return what ends that."""
        undo = [] if self._models or not models else [_registrations.follow(self)]
        self._models += models
        self._before += map(_Before, models)
        self._look()
        return undo

    def note(self, module: torch.nn.Module) -> None:
        """Note that a layer or parameter is registered with a module."""
        if id(module) in self._modules:
            self._version += 1

    def layout(self) -> Hashable:
        """Return what changes whenever layers or parameters of the models are added, exchanged or taken away."""
        return self._version, tuple([(id(each._modules), len(each._modules)) for each in self._containers])

    def trainable(self) -> list[torch.Tensor]:
        """Return the late parameters that no optimizer has and that are not frozen."""
        if self.layout() != self._seen:
            self._look()
        if not self._late:
            return []
        owned = self._owned()
        return [param for _, param in self._late if param.requires_grad and id(param) not in owned]

    def check(self, optimizer: Optimizer) -> None:
        """Refuse a step while late parameters have gradients that no optimizer applies, or that no other rank is given,
        and drop those of the former.

        Raises:
            PrepareError: naming the parameters.
        """
        trainable = self.trainable()
        self._check_reduced(optimizer)
        found = {id(param) for param in trainable if param.grad is not None}
        if not found:
            return
        names = []
        for name, param in self._late:
            if id(param) in found:
                names.append(name)
                param.grad = None
        raise errors.PrepareError(
            f"amp.step({type(optimizer).__name__}): {errors.first_names(names)} came into the model after amp.prepare, "
            "and no optimizer of the session has them, so they would not train; give them to one "
            "(optimizer.add_param_group, or amp.prepare(model, another_optimizer)), freeze them "
            "(requires_grad_(False)), or call amp.prepare once the model has all of its layers"
        )

    def _check_reduced(self, optimizer: Optimizer) -> None:
        found = [
            (name, mend) for name, param, mend in self._unreduced if param.requires_grad and param.grad is not None
        ]
        if found:
            names = errors.first_names([name for name, _ in found])
            call = f"amp.step({type(optimizer).__name__})"
            raise errors.PrepareError(f"{call}: {names} came into the model after {found[0][1]}")

    def _owned(self) -> set[int]:
        return {id(self._model_param(param)) for each in self._optimizers for param in parameters(each)}

    def _look(self) -> None:
        """Find the modules, and the parameters that were not there before."""
        modules = [each for model in self._models for each in model.modules()]
        self._modules = set(map(id, modules))
        self._containers = [each for each in modules if isinstance(each, _CONTAINERS)]
        self._seen = self.layout()
        owned = self._owned()
        self._late = [each for before in self._before for each in before.late(owned)]
        self._unreduced = [(*each, _WRAP) for each in unreduced(self._models)]
        self._unreduced += [(*each, _SHARD) for before in self._before for each in before.unreduced()]


class _Registrations:
    """torch's registration hooks, which are global: one of each kind for all sessions.

    A session that was dropped may be collected while torch goes through its hooks, so they stay until one is closed.
    """

    def __init__(self) -> None:
        self._followers: tuple[weakref.ref[LateParams], ...] = ()
        self._handles: list[RemovableHandle] = []

    def follow(self, late: LateParams) -> Callable[[], None]:
        """Call ``late.note`` for each layer and parameter that is registered; return what ends that."""
        self._followers = (*self._living(), weakref.ref(late))
        if not self._handles:
            self._handles = [
                torch_module.register_module_module_registration_hook(self._note),
                torch_module.register_module_parameter_registration_hook(self._note),
            ]
        return functools.partial(self._leave, weakref.ref(late))

    def _living(self) -> list[weakref.ref[LateParams]]:
        return [each for each in self._followers if each() is not None]

    def _note(self, module: torch.nn.Module, _name: str, _value: Any) -> None:
        for follower in self._followers:
            late = follower()
            if late is not None:
                late.note(module)

    def _leave(self, late: weakref.ref[LateParams]) -> None:
        self._followers = tuple(each for each in self._living() if each != late)
        if not self._followers:
            while self._handles:
                self._handles.pop().remove()


_registrations = _Registrations()
