"""Layers that compute again in the backward pass what they would have kept (``Tuning.checkpoint_layers``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import tensorflow as tf

from unifiedamp.backend import errors, match_layers

from . import layers
from .autocast import thread
from .keras_context import Moment

REPLAYS_SEEDS = hasattr(tf.keras, "random") and hasattr(tf.keras.random, "SeedGenerator")
"""Whether random layers draw from generators that can be asked for the same numbers again (Keras 3)."""


def choose(model: Any, globs: Sequence[str]) -> dict[str, Any]:
    """Return path → layer of the layers that are computed again; one inside another is computed with it.

    Raises:
        PolicyError: a glob matches no layer, or two match one.
        UnsupportedError: a layer draws random numbers that this Keras cannot draw again.
    """
    found = {path: layer for path, layer in layers.walk(model) if path}
    matched = match_layers(dict.fromkeys(globs, ""), found, "tuning.checkpoint_layers")
    chosen = {path: layer for path, layer in found.items() if path in matched and not _below(path, matched)}
    for path, layer in chosen.items():
        _check_random(path, layer)
    return chosen


def _below(path: str, others: Any) -> bool:
    parts = path.split(".")
    return any(".".join(parts[:length]) in others for length in range(1, len(parts)))


def _check_random(path: str, layer: Any) -> None:
    random = [inner for _, inner in layers.walk(layer) if _draws(inner)]
    if random and not REPLAYS_SEEDS:
        raise errors.UnsupportedError(
            f"tuning.checkpoint_layers: layer {path!r} holds {random[0].name!r}, and what a random layer of Keras 2 "
            "drew cannot be drawn again in the backward pass; name layers without dropout or noise, or use Keras 3"
        )


def _draws(layer: Any) -> bool:
    rates = [getattr(layer, name, None) for name in ("rate", "stddev", "dropout", "recurrent_dropout")]
    known = [rate for rate in rates if isinstance(rate, (int, float))]
    return any(known) if known else "_random_generator" in vars(layer)


def attach(layer: Any) -> Callable[[], None]:
    """Have a layer computed again in the backward pass; return what takes that back."""
    inside = [inner for _, inner in layers.walk(layer)]
    norms = [inner for inner in inside if isinstance(inner, tf.keras.layers.BatchNormalization)]
    generators = [each for inner in inside for each in getattr(inner, "_seed_generators", ())]

    def again(layer: Any, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if thread.again or thread.training is False:
            return run(layer, *args, **kwargs)
        return _recomputed(layer, run, (args, kwargs), norms, generators)

    layers.attach_again(layer, again)
    return lambda: layers.detach(layer)


def _recomputed(
    layer: Any, run: Callable[..., Any], given: Any, norms: Sequence[Any], generators: Sequence[Any]
) -> Any:
    flat = tf.nest.flatten(given)
    places = [i for i, value in enumerate(flat) if isinstance(value, tf.Tensor) and value.dtype.is_floating]
    if not places:
        return run(layer, *given[0], **given[1])
    moment, seeds, first = Moment(), _Seeds(generators), [True]

    def compute(*tensors: Any) -> Any:
        full = list(flat)
        for place, tensor in zip(places, tensors, strict=True):
            full[place] = tensor
        args, kwargs = tf.nest.pack_sequence_as(given, full)
        if first:
            first.clear()
            with seeds.noted():
                return run(layer, *args, **kwargs)
        with _uncounted(norms), seeds.replayed(), moment.again():
            return layer(*args, **kwargs)

    return tf.recompute_grad(compute)(*[flat[place] for place in places])


class _Seeds:
    """The seeds that a layer's generators gave, to be given again.

    Args:
        generators: Keras's ``SeedGenerator`` objects.
    """

    def __init__(self, generators: Sequence[Any]) -> None:
        self._generators = generators
        self._given: dict[int, list[Any]] = {id(each): [] for each in generators}

    def noted(self) -> AbstractContextManager[None]:
        """Write down what is given inside."""

        def note(generator: Any, given: list[Any]) -> Callable[..., Any]:
            def drawn(*args: Any, **kwargs: Any) -> Any:
                given.append(type(generator).next(generator, *args, **kwargs))
                return given[-1]

            return drawn

        return self._with(note)

    def replayed(self) -> AbstractContextManager[None]:
        """Give the same again inside."""

        def replay(_: Any, given: list[Any]) -> Callable[..., Any]:
            left = iter(given)
            return lambda *_args, **_kwargs: next(left)

        return self._with(replay)

    @contextmanager
    def _with(self, make: Callable[[Any, list[Any]], Callable[..., Any]]) -> Iterator[None]:
        for generator in self._generators:
            object.__setattr__(generator, "next", make(generator, self._given[id(generator)]))
        try:
            yield
        finally:
            for generator in self._generators:
                object.__delattr__(generator, "next")


@contextmanager
def _uncounted(norms: Sequence[Any]) -> Iterator[None]:
    """Have batch norms add nothing to their running statistics."""
    with ExitStack() as stack:
        for norm in norms:
            stack.callback(object.__setattr__, norm, "momentum", norm.momentum)
            object.__setattr__(norm, "momentum", 1.0)
        yield
