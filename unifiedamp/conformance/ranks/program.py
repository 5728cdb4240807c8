"""Plays a case through a session: the same loop on every framework, run by each process for the ranks that it has."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import unifiedamp as ua

from ..driver import compiled
from .case import Answers, Array, RankCase, RankFailure, RankStep, RankTrace, Rows
from .processes import Program, RankProcesses, RanksFailedError

Step = Callable[[Any], Sequence[Any]]
"""Trains on a native micro-batch; returns the norms that clipping returned."""


class RankSide(Protocol):
    """What a framework does for the ranks of one process."""

    def options(self) -> Mapping[str, Any]:
        """Return the session's arguments besides policy, scale and window; ``backend`` among them."""

    def make(self, case: RankCase) -> tuple[Any, Sequence[Any]]:
        """Return the model, wrapped as the kind of ranks says, and one optimizer for each part of ``owned``."""

    def batch(self, ranks: Sequence[Rows]) -> Any:
        """Return what :meth:`loss` takes, of the gradients of all ranks."""

    def loss(self, model: Any, batch: Any) -> Any:
        """Return what ``amp.backward`` differentiates: ``sum(w_i * x_i)`` over the rows that are there."""

    def spread(self, step: Step, compile: Callable[[Any], Any]) -> Step:
        """Return ``step`` as it runs on the ranks of this process; ``compile`` makes it what the form asks for."""

    def norms(self, returned: Sequence[Any], amp: ua.Amp) -> list[tuple[float, ...]]:
        """Return, for each rank of this process, the norms that a step returned."""

    def weights(self, model: Any) -> list[tuple[Array, ...]]:
        """Return, for each rank of this process, the whole parameters in float64."""


def play(side: RankSide, case: RankCase, form: str, first: bool = False) -> list[RankTrace]:
    """Train a case; return what each rank of this process did.

    Args:
        side: the framework's part.
        case: what to train.
        form: how steps run, see ``Harness.forms``.
        first: this process is the rank that loads, see ``RankCase.loads``.
    """
    refused = ""
    amp = ua.Amp(policy="float32", loss_scale=case.scale, accumulate_steps=case.window, **side.options())
    try:
        with amp.scope():
            model, natives = side.make(case)
        model, *optimizers = amp.prepare(model, *natives)
        if case.state is not None:
            amp.load_state_dict(case.state)
        step = _stepping(side, case, amp, model, optimizers, form)
        seen = []
        try:
            for index in range(len(case.batches) // case.window):
                if first and index == case.loads:
                    _load_alone(amp, case.loaded)
                seen.append(_trained(side, case, amp, model, step, index))
        except ua.AmpError as error:
            if case.loads is None:
                raise
            refused = f"{error}"
            applied = amp.applied_steps - len(seen)
            seen.append([RankStep(applied, 0, amp.loss_scale, (), weights) for weights in side.weights(model)])
        state = amp.state_dict()
    finally:
        amp.close()
    return [RankTrace([steps[rank] for steps in seen], state, refused) for rank in range(len(seen[0]))]


def _load_alone(amp: ua.Amp, name: str) -> None:
    state = amp.state_dict()
    number = state["state"][name]
    other = 4 * number if name == "scale" else number + 1
    amp.load_state_dict({**state, "state": {**state["state"], name: other}})


def _stepping(side: RankSide, case: RankCase, amp: ua.Amp, model: Any, optimizers: Sequence[Any], form: str) -> Step:
    def step(batch: Any) -> Sequence[Any]:
        amp.backward(lambda: side.loss(model, batch), optimizers)
        norms = []
        if case.max_norm is not None:
            norms = [amp.clip_grad_norm(optimizer, case.max_norm) for optimizer in optimizers]
        for optimizer in optimizers:
            amp.step(optimizer)
        return [norm for norm in norms if norm is not None]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ua.CompileWarning)  # steps of several processes may run as they are written
        return side.spread(step, lambda fn: compiled(amp, form, fn))


def _trained(side: RankSide, case: RankCase, amp: ua.Amp, model: Any, step: Step, index: int) -> list[RankStep]:
    before = amp.applied_steps, amp.skipped_steps
    returned: Sequence[Any] = ()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ua.StepWarning)  # an optimizer without gradients warns
        for ranks in case.batches[index * case.window : (index + 1) * case.window]:
            returned = step(side.batch(ranks))
    counts = amp.applied_steps - before[0], amp.skipped_steps - before[1]
    norms = side.norms(returned, amp)
    weights: Sequence[tuple[Array, ...] | None] = [None] * len(norms)
    if case.reads_after(index):
        weights = side.weights(model)
    return [RankStep(*counts, amp.loss_scale, *of_rank) for of_rank in zip(norms, weights, strict=True)]


def play_all(side: RankSide, cases: Sequence[RankCase], form: str, first: bool = False) -> Iterator[list[RankTrace]]:
    """Yield what the ranks of this process did in each case: a program for ``RankProcesses``."""
    for case in cases:
        yield play(side, case, form, first)


def answers_of(processes: RankProcesses, program: Program, cases: Sequence[RankCase], *args: Any) -> Answers:
    """Run ``program(index, count, cases, *args)`` in all processes; return the traces of all ranks by case.

    A case that raises, dies or hangs is a ``RankFailure``; the processes are started anew for those after it, once.
    """
    answers: Answers = {}
    left = list(cases)
    for _ in range(2):
        found, why = _tried(processes, program, left, args)
        done = min(len(each) for each in found)
        for index, case in enumerate(left[:done]):
            answers[case.name] = [trace for each in found for trace in each[index]]
        if not why:
            return answers
        answers[left[done].name] = RankFailure(why)
        left = left[done + 1 :]
        if not left:
            return answers
    return {**answers, **{case.name: RankFailure("not run: two cases before it failed") for case in left}}


def _tried(
    processes: RankProcesses, program: Program, cases: Sequence[RankCase], args: Sequence[Any]
) -> tuple[list[list[list[RankTrace]]], str]:
    try:
        return processes.run(program, cases, *args), ""
    except RanksFailedError as error:
        return error.answers, str(error)
