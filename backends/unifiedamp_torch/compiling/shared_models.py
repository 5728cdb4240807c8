"""Models that several ranks train, inside captured steps: what can be captured, and what that asks of the models.

Captured and uncaptured steps ask for the same communication in the same order, so ranks need not agree on which of them
replay: one that sees a new shape, or fails to capture, runs beside others that replay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ..distributed.ranks import library_of
from ..distributed.reducers import make_reducer, why_kept
from ..distributed.wrapped import groups_of, is_shared, replicated, world_size, wrapped_by
from .compile import compile_call

REDUCER_WARM_UP = 11
"""Uncaptured calls that a new reducer of ``DistributedDataParallel`` needs before a capture: it rebuilds its buckets
after the first, and times its first ten on the device. https://docs.pytorch.org/docs/stable/notes/cuda.html"""


def why_uncaptured(models: Sequence[torch.nn.Module], device_type: str) -> str:
    """Return why steps of these models cannot be captured on a kind of device; empty where they can."""
    if wrapped_by(models, "FullyShardedDataParallel"):
        return "FullyShardedDataParallel (FSDP1) cannot be captured; use fully_shard (FSDP2)"
    if not any(map(is_shared, models)):
        return (
            f"{world_size()} processes train together, and no prepared model is wrapped: prepare the one that "
            "DistributedDataParallel or fully_shard returned"
        )
    for group in groups_of(models) if device_type == "cuda" else ():
        if library_of(group, device_type) == "gloo":
            return "the ranks communicate by gloo, through the host's memory: init_process_group('nccl') for CUDA"
    for model in replicated(models):
        if model.find_unused_parameters and not model.static_graph:
            return "DistributedDataParallel(find_unused_parameters=True) reads from the device which ones were used"
        if why_kept(model):
            return why_kept(model)
    return ""


class SharedModels:
    """Models that several ranks train, made ready for captures.

    Args:
        models: the session's, which may grow.
    """

    def __init__(self, models: Sequence[torch.nn.Module]) -> None:
        self._models = models
        self._found: tuple[int, list[DistributedDataParallel]] = (0, [])
        self._ready: dict[int, DistributedDataParallel] = {}

    def _replicated(self) -> list[DistributedDataParallel]:
        """Return the models in ``DistributedDataParallel``; looked for once, since each call of a step asks."""
        if self._found[0] != len(self._models):
            self._found = len(self._models), list(replicated(self._models))
        return self._found[1]

    def make_ready(self) -> None:
        """Make each reducer anew, once, on the present stream.

        Autograd runs what a reducer holds on the stream where the reducer was made, which must be the captured one.
        """
        for model in self._replicated():
            if id(model) not in self._ready:
                make_reducer(model)
                self._ready[id(model)] = model

    def warm_up(self, least: int) -> int:
        """Return how many uncaptured calls a step needs before its capture; ``least``: without other ranks."""
        return max(least, REDUCER_WARM_UP) if self._replicated() else least


class CompiledModels:
    """Runs a step with its models compiled, each as its wrapper needs it; outside the step they run as they are.

    ``DistributedDataParallel`` is compiled whole, so that gradients are reduced while others are computed. Of a model
    in FSDP2 each sharded part is compiled, so that its all-gather stays outside.

    Args:
        fn: the step.
        models: the session's, which may grow.
        overrides: returns the session's op overrides.
    """

    def __init__(
        self, fn: Callable[..., Any], models: Sequence[torch.nn.Module], overrides: Callable[[], Mapping[str, str]]
    ) -> None:
        self._fn, self._models, self._overrides = fn, models, overrides
        self._compiled: dict[Any, tuple[torch.nn.Module, Any]] = {}
        self.__name__ = getattr(fn, "__name__", type(fn).__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step."""
        with self._in_use():
            return self._fn(*args, **kwargs)

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        found = [(part, vars(part).get("_compiled_call_impl")) for part in parts_to_compile(self._models)]
        try:
            for part, _ in found:
                part._compiled_call_impl = self._of(part, len(found))
            yield
        finally:
            for part, before in found:
                part._compiled_call_impl = before

    def _of(self, part: torch.nn.Module, parts: int) -> Any:
        overrides = self._overrides()
        key = id(part), tuple(overrides.items())
        if key not in self._compiled:
            self._compiled[key] = part, compile_call(part, overrides, parts)
        return self._compiled[key][1]


def parts_to_compile(models: Sequence[torch.nn.Module]) -> list[torch.nn.Module]:
    """Return the modules that are compiled one by one."""
    parts: list[torch.nn.Module] = []
    for model in models:
        sharded = wrapped_by([model], "FSDPModule")
        inner = [each for each in sharded if each is not model]
        parts += inner or list(replicated([model])) or [model]
    return parts
