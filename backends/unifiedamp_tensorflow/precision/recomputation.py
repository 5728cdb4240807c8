"""Layers that are recomputed in the backward pass (``Tuning.checkpoint_layers``)."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import tensorflow as tf

from unifiedamp.backend import errors, match_layers

from .. import patches
from .._types import BatchNorm, Layer, Model, Tensor
from ..internals import has_random_generator, seed_generators
from . import layers, region_layers
from .autocast import thread
from .call_context import CallContextSnapshot

REPLAYS_SEEDS = hasattr(tf.keras, "random") and hasattr(tf.keras.random, "SeedGenerator")
"""Whether random layers draw from generators that can repeat their numbers (Keras 3)."""


def choose(model: Model, globs: Sequence[str]) -> dict[str, Layer]:
    """Return path → layer of the layers to recompute; one inside another is recomputed with it.

    Raises:
        PolicyError: a glob matches no layer, or two match one.
        UnsupportedError: a layer draws random numbers that this Keras cannot repeat.
    """
    found = {path: layer for path, layer in layers.walk(model) if path}
    matched = match_layers(dict.fromkeys(globs, ""), found, "tuning.checkpoint_layers")
    chosen = {path: layer for path, layer in found.items() if path in matched and not _below(path, matched)}
    for path, layer in chosen.items():
        _check_random(path, layer)
    return chosen


def _below(path: str, others: Container[str]) -> bool:
    parts = path.split(".")
    return any(".".join(parts[:length]) in others for length in range(1, len(parts)))


def _check_random(path: str, layer: Layer) -> None:
    random = [inner for _, inner in layers.walk(layer) if _draws(inner)]
    if random and not REPLAYS_SEEDS:
        raise errors.UnsupportedError(
            f"tuning.checkpoint_layers: layer {path!r} holds {random[0].name!r}, and what a random layer of Keras 2 "
            "drew cannot be drawn again in the backward pass; name layers without dropout or noise, or use Keras 3"
        )


def _draws(layer: Layer) -> bool:
    rates = [getattr(layer, name, None) for name in ("rate", "stddev", "dropout", "recurrent_dropout")]
    known = [rate for rate in rates if isinstance(rate, (int, float))]
    return any(known) if known else has_random_generator(layer)


def attach(layer: Layer) -> Callable[[], None]:
    """Make a layer recompute in the backward pass; return the function that undoes it."""
    inside = [inner for _, inner in layers.walk(layer)]
    norms = [inner for inner in inside if isinstance(inner, tf.keras.layers.BatchNormalization)]
    generators = [each for inner in inside for each in seed_generators(inner)]

    def recompute(layer: Layer, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if thread.recomputing or thread.training is False:
            return run(layer, *args, **kwargs)
        return _recomputed(layer, run, (args, kwargs), norms, generators)

    region_layers.attach_recomputation(layer, recompute)
    return lambda: region_layers.detach(layer)


def _recomputed(
    layer: Layer, run: Callable[..., Any], given: Any, norms: Sequence[BatchNorm], generators: Sequence[object]
) -> Any:
    flat = tf.nest.flatten(given)
    places = [i for i, value in enumerate(flat) if isinstance(value, tf.Tensor) and value.dtype.is_floating]
    if not places:
        return run(layer, *given[0], **given[1])
    snapshot, seeds, first = CallContextSnapshot(), _Seeds(generators), [True]

    def compute(*tensors: Tensor) -> Any:
        full = list(flat)
        for place, tensor in zip(places, tensors, strict=True):
            full[place] = tensor
        args, kwargs = tf.nest.pack_sequence_as(given, full)
        if first:
            first.clear()
            with seeds.recorded():
                return run(layer, *args, **kwargs)
        with _statistics_kept(norms), seeds.replayed(), snapshot.restored():
            return layer(*args, **kwargs)

    return tf.recompute_grad(compute)(*[flat[place] for place in places])


class _Seeds:
    """The seeds that a layer's generators returned, to be replayed.

    Args:
        generators: Keras's ``SeedGenerator`` objects.
    """

    def __init__(self, generators: Sequence[object]) -> None:
        self._generators = generators
        self._given: dict[int, list[Any]] = {id(each): [] for each in generators}

    def recorded(self) -> AbstractContextManager[None]:
        """Record what is returned inside."""

        def record(generator: Any, given: list[Any]) -> Callable[..., Any]:
            def drawn(*args: Any, **kwargs: Any) -> Any:
                given.append(type(generator).next(generator, *args, **kwargs))
                return given[-1]

            return drawn

        return self._with(record)

    def replayed(self) -> AbstractContextManager[None]:
        """Return the same inside."""

        def replay(_: object, given: list[Any]) -> Callable[..., Any]:
            left = iter(given)
            return lambda *_args, **_kwargs: next(left)

        return self._with(replay)

    @contextmanager
    def _with(self, make: Callable[[Any, list[Any]], Callable[..., Any]]) -> Iterator[None]:
        with ExitStack() as stack:
            for generator in self._generators:
                replaced = make(generator, self._given[id(generator)])
                stack.enter_context(patches.attributes(generator, next=replaced))
            yield


@contextmanager
def _statistics_kept(norms: Sequence[BatchNorm]) -> Iterator[None]:
    """Keep the running statistics of batch norms unchanged inside."""
    with ExitStack() as stack:
        for norm in norms:
            stack.enter_context(patches.attributes(norm, momentum=1.0))
        yield
