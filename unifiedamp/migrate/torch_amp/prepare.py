"""``amp.prepare`` behind the optimizers, in each function that makes some."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ..nodes import dotted
from ..sessions import behind, models_of, prepare_line
from ..source import Source, Statement
from ..work import Work
from .scaler import Scaler
from .uses import Uses

_MODELS = ("model", "net", "network", "module")


def prepare(work: Work, scaler: Scaler, uses: Uses) -> None:
    """Add the calls of ``prepare`` for what the scaler steps.

    Raises:
        CannotMigrate: no line makes an optimizer of a model, or one does where the session cannot be seen.
    """
    source = work.source
    makers: dict[cst.CSTNode, list[cst.Assign]] = {}
    for optimizer in uses.optimizers:
        for assign in source.assigns(optimizer):
            if isinstance(assign.value, cst.Call) and _models(source, assign):
                makers.setdefault(source.scope(assign), []).append(assign)
    if not makers:
        raise work.stop(scaler.made, f"no line that makes {' or '.join(uses.optimizers)} from a model's parameters",
                        "make the session where model and optimizer are made, and add "
                        "`model, optimizer = amp.prepare(model, optimizer)`")  # fmt: skip
    for scope, assigns in makers.items():
        _prepare_in(work, scaler, uses, scope, assigns)


def _models(source: Source, assign: cst.Assign) -> list[str]:
    """Return the models that an optimizer is made of; where no ``parameters()`` says, those with a model's name."""
    models = models_of(source, assign.value, source.scope(assign))
    if models or not isinstance(assign.value, cst.Call):
        return models
    given = [dotted(arg.value) for arg in assign.value.args]
    return [name for name in given if name and name.rpartition(".")[2] in _MODELS]


def _prepare_in(work: Work, scaler: Scaler, uses: Uses, scope: cst.CSTNode, assigns: Sequence[cst.Assign]) -> None:
    source = work.source
    models = list(dict.fromkeys(name for assign in assigns for name in _models(source, assign)))
    optimizers = list(dict.fromkeys(dotted(assign.targets[0].target) for assign in assigns))
    place, amp = _place(work, scaler, scope, assigns)
    made_before = [a for model in models for a in source.assigns(model) if source.scope(a) is scope]
    used = min((source.order[use.call] for use in uses.all), default=0)
    others = [a for a in (*assigns, *made_before) if source.order[a] < used or source.scope(a) is not scope]
    work.edits.after(behind(source, place, others), prepare_line(amp, models, optimizers))


def _place(work: Work, scaler: Scaler, scope: cst.CSTNode, assigns: Sequence[cst.Assign]) -> tuple[Statement, str]:
    """Return the statement in ``scope`` that must come before ``prepare``, and what the session is called there."""
    if work.source.scope(scaler.made) is scope:
        return work.source.statement(scaler.made), scaler.session
    amp = scaler.seen_from(assigns[-1])
    if amp is None:
        raise work.stop(assigns[0], "the optimizer is made where the GradScaler cannot be seen",
                        "make the session there and call `amp.prepare(model, optimizer)`")  # fmt: skip
    return work.source.statement(assigns[-1]), amp
