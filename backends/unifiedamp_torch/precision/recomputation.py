"""Activation checkpointing: layers that are recomputed in the backward pass (``Tuning.checkpoint_layers``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from unifiedamp.backend import match_layers

from ..layer_paths import modules_by_path
from .layers import Forward
from .thread_state import entered

_BATCH_NORM = torch.nn.modules.batchnorm._NormBase


class Checkpointed(Forward):
    """A module's ``forward`` under ``torch.utils.checkpoint``, which enters the region's autocast again.

    Without gradients the module runs unchanged. The batch norms inside count a batch once.

    Args:
        module: whose forward is replaced on the instance.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        self._norms = [each for each in module.modules() if isinstance(each, _BATCH_NORM)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer."""
        if self.removed or not torch.is_grad_enabled():
            return self.plain(*args, **kwargs)
        if torch.compiler.is_compiling():
            # A compiled graph writes to its buffers once, even if part of it is recomputed.
            return checkpoint(self.plain, *args, use_reentrant=False, **kwargs)
        return checkpoint(self.plain, *args, use_reentrant=False, context_fn=self._contexts, **kwargs)

    def _contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _again(self._norms, entered.overrides or {})


@contextmanager
def _again(norms: Sequence[Any], overrides: Mapping[str, str]) -> Iterator[None]:
    """Compute under the op overrides of the first pass; torch enters its autocast again. Batches are not counted."""
    before = entered.overrides
    entered.overrides = overrides
    try:
        with _uncounted(norms):
            yield
    finally:
        entered.overrides = before


@contextmanager
def _uncounted(norms: Sequence[Any]) -> Iterator[None]:
    """Make batch norms normalize by the batch without updating their running statistics."""
    kept: list[tuple[Any, Any, Any]] = []
    for norm in norms:
        kept.append((norm, norm.momentum, norm.num_batches_tracked))
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, momentum, tracked in kept:
            norm.momentum, norm.num_batches_tracked = momentum, tracked


def choose(model: torch.nn.Module, globs: Sequence[str]) -> dict[str, torch.nn.Module]:
    """Return path → layer of the layers to be checkpointed; one inside another is recomputed with it.

    Raises:
        PolicyError: a glob matches no layer, or two match one.
    """
    modules = {path: module for path, module in modules_by_path(model).items() if path}
    matched = match_layers(dict.fromkeys(globs, ""), modules, "tuning.checkpoint_layers")
    return {path: modules[path] for path in modules if path in matched and not _below(path, matched)}


def _below(path: str, others: Any) -> bool:
    parts = path.split(".")
    return any(".".join(parts[:length]) in others for length in range(1, len(parts)))
