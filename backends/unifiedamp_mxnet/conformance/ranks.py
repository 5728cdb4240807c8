"""Trains the kit's cases on several contexts, which one process drives, and on the workers of a kvstore."""

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

from ..distributed.shared_kvstore import SharedKVStore
from ..mxnet_api import from_numpy, gluon, mx
from .cluster import workers
from .rank_model import RankModel

KINDS: Mapping[str, RankKind] = {
    "contexts": RankKind(reduction="sum", absent="all", quick=True),
    "dist_sync": RankKind(reduction="sum", absent="all", other_forms=("compiled",), loads_alone=True),
}
"""A context or a worker that gets no batch leaves all parameters out."""


def run_on_ranks(kind: str, count: int, form: str, options: Mapping[str, Any], cases: Sequence[RankCase]) -> Answers:
    """Train cases on ``count`` ranks; see ``Harness.run_ranks``.

    Args:
        kind: of ``KINDS``.
        count: how many contexts, or workers with one context each.
        form: how steps run.
        options: the form's ``backend_options``.
        cases: what to train.
    """
    if kind == "dist_sync" and count > 1:
        return answers_of(workers(count), train_worker, cases, form, dict(options))
    return answers_of(_process(), train, cases, count, form, dict(options))


@functools.cache
def _process() -> RankProcesses:
    return RankProcesses(1)


def train(
    _index: int, _processes: int, cases: Sequence[RankCase], count: int, form: str, options: Mapping[str, Any]
) -> Iterator[list[RankTrace]]:
    """Train cases on all contexts; the program of the one process."""
    return play_all(Contexts(count, options), cases, form)


def train_worker(
    index: int, _processes: int, cases: Sequence[RankCase], form: str, options: Mapping[str, Any]
) -> Iterator[list[RankTrace]]:
    """Train cases on one worker; the program of each."""
    return play_all(Worker(index, options), cases, form, first=index == 0)


class Contexts:
    """The contexts of one Trainer.

    Args:
        count: how many.
        options: the form's ``backend_options``.
        kvstore: returns that of a new Trainer.
    """

    def __init__(self, count: int, options: Mapping[str, Any], kvstore: Callable[[], Any] = lambda: "device") -> None:
        self._devices = [mx.cpu(index) for index in range(count)]
        self._options, self._make_kvstore = options, kvstore

    def options(self) -> Mapping[str, Any]:
        return {"backend": "mxnet", "device": "cpu", "backend_options": {"mxnet": dict(self._options)}}

    def make(self, case: RankCase) -> tuple[Any, Sequence[Any]]:
        model = RankModel(case.weights)
        model.initialize(ctx=self._devices)
        for param, value in zip(model.ordered(), case.weights, strict=True):
            param.set_data(from_numpy(value, mx.cpu()))
        settings = {"learning_rate": LEARNING_RATE, "momentum": case.momentum}
        params = model.ordered()
        trainers = [
            gluon.Trainer(
                [params[i] for i in part], "sgd", settings, kvstore=self._make_kvstore(), update_on_kvstore=False
            )
            for part in owned(case.optimizers)
        ]
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


class Worker:
    """One worker, with one context.

    Args:
        index: of its process.
        options: the form's ``backend_options``.
    """

    def __init__(self, index: int, options: Mapping[str, Any]) -> None:
        self._index, self._context = index, Contexts(1, options, SharedKVStore)
        spare: Any = from_numpy(np.ones(1, np.float32), mx.cpu())
        spare.attach_grad()
        self._spare = spare
        self.options, self.make, self.spread = self._context.options, self._context.make, self._context.spread
        self.norms, self.weights = self._context.norms, self._context.weights

    def batch(self, ranks: Sequence[Rows]) -> Any:
        return self._context.batch([ranks[self._index]])

    def loss(self, model: Any, batch: Any) -> Any:
        """Without a batch, return a loss of another array: a backward pass must reach something."""
        return self._context.loss(model, batch) or [(self._spare * 1).sum()]
