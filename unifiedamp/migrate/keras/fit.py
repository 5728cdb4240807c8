"""``model.compile`` and ``model.fit``: the model and its optimizer are prepared before ``compile``."""

from __future__ import annotations

import libcst as cst

from ..nodes import argument, dotted, literal
from ..source import Source
from ..work import Work
from .scales import quoted
from .scopes import Trained
from .start import Start
from .words import WRAPPER


def rewrite_fits(work: Work, start: Start, trained: Trained) -> None:
    """Prepare each model that is compiled and fitted.

    Raises:
        CannotMigrate: one is compiled without an optimizer.
    """
    fitted = {dotted(call.func).rpartition(".")[0] for call in work.source.methods("fit")}
    for call in work.source.methods("compile"):
        model = dotted(call.func).rpartition(".")[0]
        if model in fitted and model:
            _prepare(work, call, model)
            trained.models[model] = call
            trained.users.append(call)
            if start.rewrites:
                _in_scope(work, model)


def _prepare(work: Work, call: cst.Call, model: str) -> None:
    source, edits = work.source, work.edits
    given = argument(call, "optimizer", 0)
    if given is None:
        raise work.stop(call, f"{model}.compile without an optimizer", 'name it: optimizer="rmsprop"')
    statement = source.statement(call)
    optimizer = dotted(given) or ("amp_optimizer" if source.uses("optimizer") else "optimizer")
    if not dotted(given):
        edits.before(statement, f"{optimizer} = {_made(source, given)}")
        edits.expression(given, optimizer)
    edits.before(statement, f"{model}, {optimizer} = {work.names.amp}.prepare({model}, {optimizer})")


def _in_scope(work: Work, model: str) -> None:
    for fit in work.source.methods("fit"):
        if dotted(fit.func) == f"{model}.fit":
            statement = work.source.statement(fit)
            work.edits.wrap(statement, statement, f"with {work.names.amp}.scope():")


def _made(source: Source, given: cst.BaseExpression) -> str:
    """Return the code of the optimizer that ``compile`` was given: bare, by its name, or in a wrapper."""
    if isinstance(given, cst.Call) and WRAPPER.fullmatch(source.meaning(given.func)):
        return source.code(given.args[0].value)
    return _by_name(source, given) if isinstance(literal(given), str) else source.code(given)


def _by_name(source: Source, given: cst.BaseExpression) -> str:
    roots = {meaning: name for name, meaning in source.imports.items()}
    root = next((roots[m] for m in ("tensorflow.keras", "keras", "tf_keras") if m in roots), "")
    root = root or f"{roots.get('tensorflow', 'tf')}.keras"
    return f"{root}.optimizers.get({quoted(source, given)})"
