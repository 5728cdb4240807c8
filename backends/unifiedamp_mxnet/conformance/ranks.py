"""Trains the kit's cases on several contexts, which one process drives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from unifiedamp.conformance.ranks import (
    LEARNING_RATE,
    Answers,
    Array,
    RankCase,
    RankKind,
    RankProcesses,
    RankTrace,
    Rows,
    answers_of,
    owned,
    play_all,
)

from ..mxnet_api import from_numpy, gluon, mx
from .rank_model import RankModel

KINDS: Mapping[str, RankKind] = {"contexts": RankKind(reduction="sum", absent="all")}
"""A context that gets no batch leaves all parameters out."""


def run_on_ranks(count: int, form: str, options: Mapping[str, Any], cases: Sequence[RankCase]) -> Answers:
    """Train cases on ``count`` contexts; see ``Harness.run_ranks``.

    Args:
        count: how many contexts.
        form: how steps run.
        options: the form's ``backend_options``.
        cases: what to train.
    """
    return answers_of(_process(), train, cases, count, form, dict(options))


@functools.cache
def _process() -> RankProcesses:
    return RankProcesses(1)


def train(
    _index: int, _processes: int, cases: Sequence[RankCase], count: int, form: str, options: Mapping[str, Any]
) -> Iterator[list[RankTrace]]:
    """Train cases on all contexts; the program of the one process."""
    return play_all(Contexts(count, options), cases, form)


class Contexts:
    """The contexts of one Trainer.

    Args:
        count: how many.
        options: the form's ``backend_options``.
    """

    def __init__(self, count: int, options: Mapping[str, Any]) -> None:
        self._devices = [mx.cpu(index) for index in range(count)]
        self._options = options

    def options(self) -> Mapping[str, Any]:
        return {"backend": "mxnet", "device": "cpu", "backend_options": {"mxnet": dict(self._options)}}

    def make(self, case: RankCase) -> tuple[Any, Sequence[Any]]:
        model = RankModel(case.weights)
        model.initialize(ctx=self._devices)
        for param, value in zip(model.ordered(), case.weights, strict=True):
            param.set_data(from_numpy(value, mx.cpu()))
        settings = {"learning_rate": LEARNING_RATE, "momentum": case.momentum}
        params = model.ordered()
        trainers = [gluon.Trainer([params[i] for i in part], "sgd", settings) for part in owned(case.optimizers)]
        return model, trainers

    def batch(self, ranks: Sequence[Rows]) -> Any:
        found = []
        for rows, context in zip(ranks, self._devices, strict=True):
            there = [row for row in rows if row is not None]
            if there:
                found.append(from_numpy(np.concatenate(there), context))
        return found

    def loss(self, model: Any, batch: Any) -> Any:
        return [model(x) for x in batch]

    def spread(self, step: Any, compile: Callable[[Any], Any]) -> Any:
        return compile(step)

    def norms(self, returned: Sequence[Any], amp: Any) -> list[tuple[float, ...]]:
        return [tuple(float(amp.to_numpy(norm).item()) for norm in returned)] * len(self._devices)

    def weights(self, model: Any) -> list[tuple[Array, ...]]:
        params = model.ordered()
        return [tuple(p.data(c).asnumpy().astype("float64") for p in params) for c in self._devices]
