"""Regions under a policy.

The region is a ``jax.make_user_context`` value: thread-local, nested, restored by exceptions, and part of the key of
every ``jax.jit`` cache, so that a function jitted by anyone is traced anew under another policy. Flax's layers have an
attribute ``promote_dtype`` that chooses the dtype to compute in: ``attach`` puts one there that looks at the region.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from flax import nnx
from flax.nnx.nn import dtypes

from unifiedamp.backend import Policy, errors, match_layers

from . import layers


class Region(NamedTuple):
    """What layers look at."""

    compute: str
    output: str
    keep_norms: bool


current = jax.make_user_context(None)
"""The :class:`Region` in force, or None; ``current.value`` reads it, ``with current(region):`` sets it."""


def region(enabled: bool, policy: Policy) -> AbstractContextManager[Any]:
    """Return a new region (each is entered once)."""
    named = Region(policy.compute_dtype, policy.output_dtype, policy.keep_norm_float32)
    return current(named if enabled else None)


@dataclass(frozen=True)
class Promote:
    """A layer's ``promote_dtype`` under policies. A dtype given to the layer itself wins over them all.

    Attributes:
        own: what the layer had.
        norm: whether it normalizes.
        override: the dtype that ``layer_overrides`` names for it.
    """

    own: Callable[..., Any] = dtypes.promote_dtype
    norm: bool = False
    override: str | None = None

    def __call__(self, args: Any, /, *, dtype: Any = None, inexact: bool = True) -> Any:
        """Cast ``args`` to one dtype, as Flax's own does."""
        now = current.value
        if dtype is None and now is not None:
            dtype = self.override or ("float32" if self.norm and now.keep_norms else now.compute)
        return self.own(args, dtype=dtype, inexact=inexact)


promote_dtype = Promote()
"""For layers of your own: ``x, w = promote_dtype((x, w))`` before a product."""


def attach(model: nnx.Module, policy: Policy) -> None:
    """Make the model's layers follow regions, and the model cast its outputs."""
    found = layers.layers(model)
    overrides = match_layers(policy.layer_overrides, found)
    detach(model)
    for path, layer in found.items():
        layer.promote_dtype = Promote(layer.promote_dtype, isinstance(layer, layers.NORMS), overrides.get(path))
    object.__setattr__(model, "__class__", _casting(type(model)))


def detach(model: nnx.Module) -> None:
    """Undo :func:`attach`."""
    for layer in layers.layers(model).values():
        if isinstance(layer.promote_dtype, Promote):
            layer.promote_dtype = layer.promote_dtype.own
    object.__setattr__(model, "__class__", getattr(type(model), "_uncast", type(model)))


@functools.cache
def _casting(kind: type) -> type:
    """Return a subclass whose instances answer in the region's output dtype."""

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = kind.__call__(self, *args, **kwargs)
        now = current.value
        return output if now is None else layers.cast_floating(output, now.output)

    body = {"__call__": __call__, "_uncast": kind, "__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind)(kind.__name__, (kind,), body)


MODES = ("deterministic", "use_running_average")
"""What ``nnx.Module.eval`` sets."""


@contextmanager
def inference(models: Sequence[nnx.Module], policy: Policy) -> Iterator[None]:
    """Run a region with ``models`` in evaluation mode; JAX records no gradients unless asked."""
    found_layers = [layer for model in models for _, layer in nnx.iter_modules(model, graph=True)]
    found = [(layer, name, getattr(layer, name)) for layer in found_layers for name in MODES if hasattr(layer, name)]
    try:
        for model in models:
            model.eval()
        with region(True, policy):
            yield
    finally:
        for layer, name, mode in found:
            setattr(layer, name, mode)


def custom_function(target: Callable[..., Any], cast_inputs: str | None) -> Callable[..., Any]:
    """Return ``target`` run without a region, on inputs cast to ``cast_inputs``, wherever a region is in force.

    Raises:
        UnsupportedError: ``target`` is a class.
    """
    if isinstance(target, type):
        raise errors.UnsupportedError(f"amp_function: JAX has no custom-operation classes; decorate a function, "
                                      f"which may be a jax.custom_vjp, instead of {target.__name__}")  # fmt: skip

    @functools.wraps(target)
    def call(*args: Any, **kwargs: Any) -> Any:
        if current.value is None or cast_inputs is None:
            return target(*args, **kwargs)
        args, kwargs = layers.cast_floating((args, kwargs), cast_inputs)
        with current(None):
            return target(*args, **kwargs)

    return call
