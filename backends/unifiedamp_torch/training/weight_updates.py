"""Updates of bfloat16 parameters without float32 master weights: ``Policy.update``.

An optimizer's step runs over float32 values that stand in its groups in place of the parameters, and are rounded back.
They live while the optimizer works on them and no longer: for torch's own optimizers, which treat each parameter by
itself, a few parameters at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from unifiedamp.backend import Policy, errors, rounding

from .bfloat16_rounding import stochastic_
from .compensations import Compensations, version_of
from .gradients import local_part, parameters
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
        in_use: the policy asks for them.
        steps: id of an optimizer → how many of its updates were rounded.
    """

    def __init__(
        self, policy: Policy, compensations: Compensations, name_of: Callable[[torch.Tensor], str]
    ) -> None:  # fmt: skip
        self._policy, self._compensations, self._name_of = policy, compensations, name_of
        self.in_use = policy.update is not None
        self.steps: dict[int, int] = {}
        self._running: Float32Groups | None = None

    @torch.no_grad()
    def run(self, optimizer: Optimizer) -> None:
        """Run ``optimizer.step()`` over float32 values, and round them to the parameters.

        Raises:
            UnsupportedError: the step left all of these values as they are.
        """
        step = self.steps.get(id(optimizer), 0)
        self._running = groups = Float32Groups(optimizer, self, rounding.step_key(self._policy.update_seed, step))
        try:
            groups.attach()
            run_step(optimizer)
            groups.finish()
        finally:
            self.restore()
        self.steps[id(optimizer)] = step + 1

    def restore(self) -> None:
        """Put back what an interrupted update had taken out of an optimizer. Idempotent."""
        groups, self._running = self._running, None
        if groups is not None:
            groups.detach()

    def values(self, param: torch.Tensor) -> torch.Tensor:
        """Return a copy of a parameter's true weights, float32."""
        true = self._compensations.true(param)
        return param.detach().float() if true is param else true

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
            PrepareError: an optimizer is differentiable, or steps another one inside it.
        """
        undo: list[Callable[[], None]] = []
        for optimizer in optimizers if self.in_use else ():
            _check(optimizer)
            loading = _KeptDtypes()
            undo += [
                optimizer.register_step_pre_hook(self._before_step).remove,
                optimizer.register_load_state_dict_pre_hook(loading.begin).remove,
                optimizer.register_load_state_dict_post_hook(loading.end).remove,
            ]
        return undo

    def _before_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._running is None or self._running.optimizer is not optimizer:
            raise errors.StepOrderError(
                f"{type(optimizer).__name__}.step(): under update={self._policy.update!r} the session rounds the "
                "update to the parameters; call amp.step(optimizer) instead of optimizer.step()"
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
            _narrow_state(self.optimizer, wide, param)
        self._wide = []
        for group, params in zip(self._groups, self._params, strict=True):
            group["params"] = params
        self.optimizer.param_groups = self._groups

    def _widened(self, param: torch.Tensor) -> torch.Tensor:
        """Return what the step trains in place of a parameter."""
        if param.dtype is not torch.bfloat16 or param.grad is None:
            return param
        wide = torch.nn.Parameter(self._updates.values(param))
        wide.grad = param.grad.float()
        self._wide.append((param, wide))
        _widen_state(self.optimizer, param, wide)
        return wide

    def _round(self) -> None:
        while self._wide:
            param, wide = self._wide[-1]
            self._updates.round(param, wide.detach(), self._step)
            _narrow_state(self.optimizer, wide, param)
            self._wide.pop()


def _parts(params: Sequence[torch.Tensor]) -> Iterator[Sequence[torch.Tensor]]:
    """Yield parameters in order, in parts of at least ``TOGETHER`` elements but the last."""
    start = size = 0
    for index, param in enumerate(params, 1):
        size += param.numel()
        if size >= TOGETHER or index == len(params):
            yield params[start:index]
            start, size = index, 0


def _widen_state(optimizer: Optimizer, param: torch.Tensor, wide: torch.Tensor) -> None:
    """Give the float32 parameter ``wide`` the state of ``param``, in float32."""
    if param not in optimizer.state:
        return
    state = optimizer.state.pop(param)
    for name, value in state.items():
        moment = isinstance(value, torch.Tensor) and value.shape == param.shape and value.is_floating_point()
        if moment and name != "step":
            state[name] = value.float()
    optimizer.state[wide] = state


def _narrow_state(optimizer: Optimizer, wide: torch.Tensor, param: torch.Tensor) -> None:
    """Give a parameter the state, in float32, of the float32 one that stood in its place."""
    if wide in optimizer.state:
        optimizer.state[param] = optimizer.state.pop(wide)


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
