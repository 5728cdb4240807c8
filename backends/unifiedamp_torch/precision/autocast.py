"""Autocast regions: ``torch.autocast``, created once per session and entered any number of times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from unifiedamp.backend import Switches

from .thread_state import ThreadState, entered

_UNCAST = (None, torch.float32)
"""The dtypes of regions without autocast."""


def in_bfloat16(device_type: str) -> bool:
    """Return whether autocast to bfloat16 is on, inside which float8 layers run in float8; dynamo traces it."""
    return torch.is_autocast_enabled(device_type) and torch.get_autocast_dtype(device_type) is torch.bfloat16


def in_float32_layer(device_type: str) -> bool:
    """Return whether a layer that keeps float32 runs inside a region; dynamo traces it."""
    return not torch.is_autocast_enabled(device_type) and torch.get_autocast_dtype(device_type) is torch.float32


class _Recomputing:
    """The overrides of the session that runs backward now, for forwards recomputed there (checkpointing).

    Those may run in threads of the autograd engine, which have entered no region.
    """

    overrides: Mapping[str, str] | None = None


recomputing = _Recomputing()


def active_overrides() -> Mapping[str, str] | None:
    """Return the op overrides for the operation being run."""
    if entered.overrides is None and recomputing.overrides and torch._C._current_graph_task_id() != -1:
        return recomputing.overrides
    return entered.overrides


class Region(torch.autocast):
    """A ``torch.autocast`` that is reentrant and can be entered by several threads.

    A native region saves the previous state in its attributes, so entering it twice loses that state. This one enters a
    spare native region each time. It is still a ``torch.autocast``, so that torch.compile traces through it.

    Args:
        device_type: "cpu", "cuda", ….
        dtype: the dtype that matrix products and convolutions run in; None disables autocast in the region, and so does
            float32, by which layers inside know where they are.
        cache_enabled: keep the casts of parameters until the outermost region is left.
        overrides: operation → choice, active inside.
        switches: process-wide settings that hold inside; a compiled step holds them as a whole instead.
        explain: called with an exception that leaves the region, None for none; may raise another one.
    """

    def __init__(
        self,
        device_type: str,
        dtype: torch.dtype | None,
        cache_enabled: bool = True,
        overrides: Mapping[str, str] | None = None,
        switches: Switches | None = None,
        explain: Callable[[object], None] | None = None,
    ) -> None:
        self._switches, self._explain = switches or None, explain
        self.become(device_type, dtype, cache_enabled, overrides)

    def become(
        self, device_type: str, dtype: torch.dtype | None, cache_enabled: bool, overrides: Mapping[str, str] | None
    ) -> None:
        """Take other settings, as the constructor does; where it is entered now, they hold from the next time."""
        self._native = (device_type, dtype, dtype not in _UNCAST, cache_enabled)
        super().__init__(*self._native)
        self._overrides = overrides or None
        self._spare: list[torch.autocast] = []

    def __enter__(self) -> Region:
        try:
            native = self._spare.pop()
        except IndexError:
            native = torch.autocast(*self._native)
        found, switched = ThreadState.read(self.device), False
        try:
            if self._switches is not None:
                self._switches.__enter__()
                switched = True
            native.__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            if entered.stack:
                _drop_other_casts(self._native[1])
            entered.stack.append((native, entered.overrides, self._spare, self._native[1]))
            entered.overrides = self._overrides
        except BaseException:  # a signal's: ``with`` does not leave what it could not enter
            found.restore()
            if self._switches is not None and switched:
                self._switches.__exit__()
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        native, entered.overrides, spare, dtype = entered.stack.pop()
        native.__exit__(*error)
        if entered.stack:
            _drop_other_casts(dtype)
        if self._switches is not None:
            self._switches.__exit__()
        spare.append(native)
        if self._explain is not None and error[0] is not None:
            self._explain(error[1])

    def __reduce__(self) -> Any:
        device_type, dtype, _, cache_enabled = self._native
        return (Region, (device_type, dtype, cache_enabled, self._overrides))


def _drop_other_casts(dtype: torch.dtype | None) -> None:
    """Clear autocast's cache between regions of two dtypes, one inside the other: it would return casts to the other.

    Args:
        dtype: of the region that is entered or left; None or float32 for one without autocast, which casts nothing.
    """
    if dtype not in _UNCAST and any(other not in (*_UNCAST, dtype) for *_, other in entered.stack):
        torch.clear_autocast_cache()


class Inference:
    """A region without gradients, with models in evaluation mode; each module's mode is restored.

    Gradients are disabled as by ``no_grad``: tensors made in ``inference_mode`` cannot be used in training later, and
    autocast's cache would return them there. The region should keep no cache, for the same reason.

    Args:
        make_region: returns the autocast region, when this one is entered: the session's policy may have changed since
            it was made.
        models: put in evaluation mode inside.
    """

    def __init__(self, make_region: Callable[[], Region], models: Sequence[torch.nn.Module]) -> None:
        self._make_region = make_region
        self._models = models
        self._training: list[torch.nn.Module] = []
        self._had_grad = True

    def __enter__(self) -> None:
        self._region = self._make_region()
        self._training = [module for model in self._models for module in model.modules() if module.training]
        self._had_grad = torch.is_grad_enabled()
        try:
            for model in self._models:
                model.eval()
            torch.set_grad_enabled(False)
            self._region.__enter__()
        except BaseException:
            self._restore()
            raise

    def __exit__(self, *error: Any) -> None:
        self._region.__exit__(*error)
        self._restore()

    def _restore(self) -> None:
        torch.set_grad_enabled(self._had_grad)
        for module in self._training:
            module.training = True
