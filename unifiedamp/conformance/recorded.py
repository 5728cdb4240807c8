"""What the tests of the recorder share: a sink that keeps, and a small model that trains."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..recording.advice import findings
from ..recording.reading import Recording, collect, join_ranks
from ..session import Amp
from .driver import compiled, session
from .harness import Array

Layers = list[tuple[Array, Array]]


class Kept:
    """A sink that keeps its records."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.closed = False

    def write(self, record: Any) -> None:
        """Keep it."""
        self.records.append(record)

    def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True

    def of(self, kind: str) -> list[Any]:
        """Return the records of a kind."""
        return [record for record in self.records if record["kind"] == kind]

    def recording(self) -> Recording:
        """Return what is read back of them."""
        return collect(json.dumps(record) for record in self.records)

    def found(self, kind: str) -> dict[str, str]:
        """Return what the report says of a kind, by name."""
        recording = Recording(self.of("header"), self.of("step"), self.of("skip"), ranks=self.of("ranks"))
        join_ranks(recording.steps, recording.ranks)
        return {each.name: each.text for each in findings(recording) if each.kind == kind}


def mlp_run(
    harness: Any, form: str, weights: Sequence[tuple[Any, Any]], **options: Any
) -> tuple[Amp, Any, Any, Callable[[Any], Any]]:
    """A float32 model of dense layers, and a step of mean squared error against zeros."""
    amp = session(harness, form, **options)
    with amp.scope():
        model = harness.mlp([(np.float32(w), np.float32(b)) for w, b in weights])
        optimizer = harness.sgd([model], 0.01)
    model, optimizer = amp.prepare(model, optimizer)

    def step(x: Any, y: Any) -> Any:
        loss = amp.backward(lambda: harness.mean_square(model(x), y), optimizer)
        amp.step(optimizer)
        return loss

    step = compiled(amp, form, step)
    outputs = len(weights[-1][1])

    def feed(x: Any) -> Any:
        return step(amp.to_native(np.float32(x)), amp.to_native(np.zeros((len(x), outputs), np.float32)))

    return amp, model, optimizer, feed


def layers(*sizes: int) -> Layers:
    """Weights and biases of dense layers of these sizes."""
    rng = np.random.default_rng(0)
    return [(rng.normal(0, 0.5, pair).astype(np.float32), np.zeros(pair[1], np.float32)) for pair in pairwise(sizes)]


def batch(seed: int = 1) -> Array:
    """Eight rows of four."""
    return np.random.default_rng(seed).normal(0, 1, (8, 4)).astype(np.float32)
