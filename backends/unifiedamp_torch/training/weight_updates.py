"""Updates of bfloat16 parameters without float32 master weights, and of moments that are kept in fewer bits:
``Policy.update`` and ``Policy.state_dtype``.

An optimizer's step runs over float32 values that stand in its groups in place of the parameters, and are rounded back.
They live while the optimizer works on them and no longer: for torch's own optimizers, which treat each parameter by
itself, a few parameters at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from unifiedamp.backend import Policy, errors, rounding

from .bfloat16_rounding import stochastic_
from .compensations import Compensations, version_of
from .device_updates import DeviceUpdates
from .gradients import has_sparse, local_part, parameters
from .moments import Moments
from .native_calls import run_step

Optimizer = torch.optim.Optimizer

TOGETHER = 2**22
"""Elements of parameters that are float32 at the same time, at least; 16 MiB."""

BY_PARAMETER = frozenset({
    "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
})  # fmt: skip
"""Optimizers of ``torch.optim`` that go through their groups once and treat each parameter by itself."""


class WeightUpdates:
    """The updates of one session.

    Args:
        policy: the session's.
        compensations: the session's.
        name_of: returns a parameter's name.

    Attributes:
        in_use: the policy asks for them, or for moments in fewer bits.
        moments: what optimizers keep between steps.
        on_device: updates that need no host.
        steps: id of an optimizer → how many of its updates were rounded: an int, or an int32 scalar on its device.
        version: changes where a step of the host may have moved what a captured step reads.
    """

    def __init__(
        self, policy: Policy, compensations: Compensations, name_of: Callable[[torch.Tensor], str]
    ) -> None:  # fmt: skip
        self._policy, self._compensations, self._name_of = policy, compensations, name_of
        self.moments = Moments(policy, name_of)
        self.in_use = policy.update is not None or self.moments.in_use
        self.on_device = DeviceUpdates(policy, compensations, name_of)
        self.steps: dict[int, int | torch.Tensor] = {}
        self.version = 0
        self._running: Float32Groups | None = None

    @torch.no_grad()
    def run(self, optimizer: Optimizer) -> None:
        """Run ``optimizer.step()`` over float32 values, and round them to the parameters.

        Raises:
            UnsupportedError: the step left all of these values as they are; a gradient is sparse.
        """
        if self.moments.in_use and has_sparse(optimizer):
            raise errors.UnsupportedError(
                f"state_dtype: a gradient of this {type(optimizer).__name__} is sparse, and moments are rounded whole; "
                "make the embedding with sparse=False, or leave state_dtype out"
            )
        step, self.version = int(self.steps.get(id(optimizer), 0)), self.version + 1
        self._running = groups = Float32Groups(optimizer, self, rounding.step_key(self._policy.update_seed, step))
        try:
            groups.attach()
            run_step(optimizer)
            groups.finish()
        finally:
            self.restore()
        self.steps[id(optimizer)] = step + 1

    def device_update(self, optimizer: Optimizer, capturing: bool) -> Callable[[torch.Tensor | None], None] | None:
        """Return an update that skips on the device; None where the host has to do this step, or all of them.

        Raises:
            UnsupportedError: ``capturing``, and the host has to do all steps.
        """
        why = self.on_device.why_not(optimizer)
        if why and capturing:
            raise errors.UnsupportedError(f"amp.step: {why}")
        if why or not self.on_device.ready(optimizer, capturing):
            return None
        count = self.steps.get(id(optimizer), 0)
        if not isinstance(count, torch.Tensor):
            if capturing:
                return None
            device = next(parameters(optimizer)).device
            count = self.steps[id(optimizer)] = torch.tensor(count, dtype=torch.int32, device=device)
        return functools.partial(self.on_device.run, optimizer, count)

    def restore(self) -> None:
        """Put back what an interrupted update had taken out of an optimizer. Idempotent."""
        groups, self._running = self._running, None
        if groups is not None:
            groups.detach()

    def values(self, param: torch.Tensor) -> torch.Tensor:
        """Return a copy of a parameter's true weights, float32."""
        true = self._compensations.true(param)
        return param.detach().float() if true is param else true

    def rounds(self, param: torch.Tensor) -> bool:
        """Return whether a parameter is updated in float32 and rounded."""
        return self._policy.update is not None and param.dtype is torch.bfloat16

    def round(self, param: torch.Tensor, values: torch.Tensor, step: int) -> None:
        """Set a parameter to float32 values, which are overwritten; ``step``: the key of this step."""
        if self._policy.update == "kahan":
            self._compensations.split(param, values)
        else:
            stochastic_(local_part(param), local_part(values), rounding.param_key(self._name_of(param)), step)

    # -- native calls --------------------------------------------------------------------------------------------

    def watch(self, optimizers: Sequence[Optimizer]) -> list[Callable[[], None]]:
        """Refuse native steps of ``optimizers``, and keep the dtypes of states that they load; return what ends that.

        Raises:
            PrepareError: an optimizer is differentiable, steps another one inside it, or has unknown moments.
        """
        undo: list[Callable[[], None]] = []
        for optimizer in optimizers if self.in_use else ():
            _check(optimizer)
            undo += self.moments.watch(optimizer)
            loading = _KeptDtypes()
            undo += [
                optimizer.register_step_pre_hook(self._before_step).remove,
                optimizer.register_load_state_dict_pre_hook(loading.begin).remove,
                optimizer.register_load_state_dict_post_hook(loading.end).remove,
            ]
        return undo

    def _before_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._running is None or self._running.optimizer is not optimizer:
            what = (
                f"update={self._policy.update!r} the session rounds the update to the parameters"
                if self._policy.update
                else f"state_dtype={self._policy.state_dtype!r} the session keeps the moments"
            )
            raise errors.StepOrderError(
                f"{type(optimizer).__name__}.step(): under {what}; call amp.step(optimizer) instead of optimizer.step()"
            )


class Float32Groups(list[dict[str, Any]]):
    """An optimizer's groups while its step runs: iterating them yields groups of float32 parameters.

    Args:
        optimizer: whose.
        updates: the session's.
        step: the key of this step.

    Attributes:
        optimizer: see the argument.
    """

    def __init__(self, optimizer: Optimizer, updates: WeightUpdates, step: int) -> None:
        super().__init__(optimizer.param_groups)
        self.optimizer, self._updates, self._step = optimizer, updates, step
        self._groups = optimizer.param_groups
        self._params = [list(group["params"]) for group in self._groups]
        self._wide: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._streams = type(optimizer).__name__ in BY_PARAMETER and type(optimizer).__module__.startswith(
            "torch.optim."
        )

    def attach(self) -> None:
        """Put these groups, or float32 parameters, in place of the optimizer's."""
        if self._streams:
            self.optimizer.param_groups = self
        else:
            for group, params in zip(self._groups, self._params, strict=True):
                group["params"] = [self._widened(param) for param in params]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for group, params in zip(self._groups, self._params, strict=True):
            for some in _parts(params):
                group["params"] = [self._widened(param) for param in some]
                yield group
                self._round()
            group["params"] = params

    def finish(self) -> None:
        """Round what the step left in float32.

        Raises:
            UnsupportedError: it wrote to none of the float32 parameters.
        """
        wrote = self._streams or not self._wide or any(version_of(wide) for _, wide in self._wide)
        if not wrote and not any(group.get("fused") for group in self._groups):
            raise errors.UnsupportedError(
                f"update: {type(self.optimizer).__name__}.step did not update the float32 parameters in its "
                "param_groups, so its updates cannot be rounded; use an optimizer that trains its param_groups, or "
                "master_weights=True instead of update"
            )
        self._round()

    def detach(self) -> None:
        """Put the parameters and their state back; float32 values that were not rounded are dropped."""
        for param, wide in self._wide:
            _move_state(self.optimizer, wide, param)
        self._wide = []
        for group, params in zip(self._groups, self._params, strict=True):
            group["params"] = params
        self.optimizer.param_groups = self._groups

    def _widened(self, param: torch.Tensor) -> torch.Tensor:
        """Return what the step trains in place of a parameter."""
        rounds, moments = self._updates.rounds(param), self._updates.moments
        if param.grad is None or not (rounds or moments.in_use):
            return param
        wide = param
        if rounds:
            wide = torch.nn.Parameter(self._updates.values(param))
            wide.grad = param.grad.float()
        self._wide.append((param, wide))
        _move_state(self.optimizer, param, wide)
        moments.widen(self.optimizer, wide)
        return wide

    def _round(self) -> None:
        while self._wide:
            param, wide = self._wide[-1]
            if wide is not param:
                self._updates.round(param, wide.detach(), self._step)
                _move_state(self.optimizer, wide, param)
            self._updates.moments.narrow(self.optimizer, param, self._step)
            self._wide.pop()


def _parts(params: Sequence[torch.Tensor]) -> Iterator[Sequence[torch.Tensor]]:
    """Yield parameters in order, in parts of at least ``TOGETHER`` elements but the last."""
    start = size = 0
    for index, param in enumerate(params, 1):
        size += param.numel()
        if size >= TOGETHER or index == len(params):
            yield params[start:index]
            start, size = index, 0


def _move_state(optimizer: Optimizer, old: torch.Tensor, new: torch.Tensor) -> None:
    """Give a parameter the state of the one that stood in its place."""
    if new is not old and old in optimizer.state:
        optimizer.state[new] = optimizer.state.pop(old)


def _check(optimizer: Optimizer) -> None:
    name = type(optimizer).__name__
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise errors.PrepareError(
            f"update: this {name} is differentiable, and rounding has no gradient; make it with differentiable=False"
        )
    if name == "ZeroRedundancyOptimizer":
        raise errors.PrepareError(
            f"update: {name} steps an optimizer inside it, whose parameters cannot be rounded; use fully_shard (FSDP2) "
            "and the optimizer itself, or master_weights=True instead of update"
        )


class _KeptDtypes:
    """Keeps the dtypes of a state that an optimizer loads: torch casts it to the dtype of the parameters."""

    def __init__(self) -> None:
        self._loaded: Mapping[str, Any] = {}

    def begin(self, _optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        """Note the state."""
        self._loaded = state

    @torch.no_grad()
    def end(self, optimizer: Optimizer) -> None:
        """Set what was cast to what was loaded."""
        loaded, self._loaded = self._loaded, {}
        saved = [key for group in loaded.get("param_groups", ()) for key in group["params"]]
        for key, param in zip(saved, parameters(optimizer), strict=False):
            state = optimizer.state.get(param, {})
            for name, value in loaded["state"].get(key, {}).items():
                now = state.get(name)
                if isinstance(value, torch.Tensor) and isinstance(now, torch.Tensor) and now.dtype is not value.dtype:
                    state[name] = torch.empty_like(now, dtype=value.dtype).copy_(value)
