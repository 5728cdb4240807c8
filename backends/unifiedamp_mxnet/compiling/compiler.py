"""``MXNetCompiler``: Gluon's whole-step form is hybridized models, run by the user's own Python."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from unifiedamp.backend import Compiler, SessionSpec, StepOrderState, errors

from .._types import Block, HybridBlock
from ..device.numpy_semantics import in_numpy_semantics
from ..layer_paths import children, is_hybrid, prelus_below, walk
from ..mxnet_api import gluon, mx
from ..options import BULK, hybridize_flags


class Hybridizer:
    """Hybridizes the session's models, once a step is compiled.

    Args:
        spec: for the options, and to warn through.
        models: the prepared models; the list may grow.
    """

    def __init__(self, spec: SessionSpec, models: Sequence[Block]) -> None:
        self._spec, self._models = spec, models
        self._flags = hybridize_flags(spec.options, spec.compile_mode)
        self._active = False

    def set_mode(self, mode: str) -> None:
        """Set the mode of ``amp.compile``, for the blocks that are hybridized from now on."""
        self._flags = hybridize_flags(self._spec.options, mode)

    def hybridize_all(self) -> None:
        """Hybridize the prepared models, and those that will be prepared."""
        self._active = True
        for model in self._models:
            self.hybridize(model)

    def on_model(self, model: Block) -> None:
        """Hybridize a model that is prepared after a step was compiled."""
        if self._active:
            self.hybridize(model)

    def hybridize(self, model: Block) -> None:
        """Hybridize a model; blocks that the user hybridized keep their own settings and graphs."""
        plain = [path or type(model).__name__ for path, block in walk(model) if not is_hybrid(block)]
        if plain:
            self._spec.warn(
                f"amp.compile: {errors.first_names(plain)} are no HybridBlocks and stay imperative; what is hybrid "
                "below them is compiled",
                errors.PolicyWarning,
            )
        prelus = prelus_below(model)
        if prelus:
            self._spec.warn(
                f"amp.compile: MXNet computes a wrong gradient for PReLU inside a larger graph ({', '.join(prelus)}); "
                "the blocks that hold it stay imperative, and what is below them is compiled",
                errors.PolicyWarning,
            )
        for block in _topmost_hybrid(model):
            if not block._active:
                block.hybridize(True, **self._flags)


class MXNetCompiler(Compiler):
    """Hybridizes models; mode "max" also runs the step in bulk.

    Args:
        hybridizer: the session's.
    """

    def __init__(self, hybridizer: Hybridizer) -> None:
        self._hybridizer = hybridizer

    @in_numpy_semantics
    def compile(self, fn: Any, order: StepOrderState, mode: str) -> Callable[..., Any]:
        """Hybridize ``fn`` itself when it is a block, else the prepared models; return what to call."""
        self._hybridizer.set_mode(mode)
        if isinstance(fn, gluon.Block):
            self._hybridizer.hybridize(fn)
            return fn  # type: ignore[no-any-return]  # a block is callable
        self._hybridizer.hybridize_all()
        return _in_bulk(fn) if mode == "max" else fn


def _in_bulk(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``step`` with the operators outside the hybridized graphs (update, finite check) run in bulk too."""

    @functools.wraps(step)
    def bulked(*args: object, **kwargs: object) -> Any:
        with mx.engine.bulk(BULK):
            return step(*args, **kwargs)

    return bulked


def _topmost_hybrid(model: Block) -> Iterable[HybridBlock]:
    if is_hybrid(model) and not prelus_below(model):
        yield model
        return
    for _, child in children(model):
        yield from _topmost_hybrid(child)
