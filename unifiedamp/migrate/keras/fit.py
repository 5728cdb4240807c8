"""``model.compile``: the model and its optimizer are prepared before it."""

from __future__ import annotations

import libcst as cst

from ..nodes import argument, assigned, dotted, keywords, literal, parameters, walk
from ..sessions import binds
from ..source import Source
from ..work import Work
from .overridden import is_super, keeps_optimizer
from .scales import quoted
from .scopes import Trained
from .stages import Stages
from .start import Start
from .words import REWRITE, WRAPPER

_COMPILE = {
    "optimizer", "loss", "metrics", "loss_weights", "weighted_metrics", "run_eagerly", "steps_per_execution",
    "jit_compile", "auto_scale_loss", "sample_weight_mode", "target_tensors", "distribute", "cloning",
    "experimental_run_tf_function", "experimental_steps_per_execution", "pss_evaluation_shards", "from_serialized",
}  # fmt: skip
_TRAINS = ("fit", "fit_generator", "train_on_batch")


def rewrite_fits(work: Work, start: Start, trained: Trained) -> None:
    """Prepare each model that is compiled; one without an optimizer or a name blocks."""
    source, stages = work.source, Stages(work, start)
    fitted = {dotted(call.func).rpartition(".")[0] for name in _TRAINS for call in source.methods(name)}
    for call in source.methods("compile"):
        assert isinstance(call.func, cst.Attribute)
        model = dotted(call.func.value)
        if is_super(call):
            continue  # in a model's own compile, which its callers' lines are for
        positional = len(call.args) > 1 and model.partition(".")[0] not in source.imports
        if not (keywords(call) & {"optimizer", "loss"} or positional or (model and model in fitted)):
            continue
        if model in ("", "self"):
            what = f"{source.code(call.func)}() of a model without a name"
            work.block(call, what, "assign the model to a name, then model, optimizer = amp.prepare(...)")
            continue
        with work.blocking():
            _refuse_own_compile(work, call, model)
            _prepare(work, stages, call, model)
        trained.models[model] = call
        trained.users.append(call)
        if start.rewrites and not _in_scope(work, model):
            work.block(call, f"no {model}.fit in this file", "fit it in `with amp.scope():`, where graphs convert")


def _refuse_own_compile(work: Work, call: cst.Call, model: str) -> None:
    """Refuse a ``compile`` of other code, with a second optimizer or words that Keras's has not: its steps are too.

    Raises:
        CannotMigrate: it is one.
    """
    own = keeps_optimizer(work.source, call, model)
    if own is not None:
        what = f"{model}'s class overrides compile and passes no optimizer to super().compile, which uses its default"
        work.block(own, what, "`super().compile(optimizer=optimizer)` in it, with the optimizer that it is given")
    words = sorted(keywords(call) - _COMPILE - {"*"})
    second = [arg.value for arg in call.args if arg.keyword is None and not arg.star][1:2]
    optimizers = [work.source.code(one) for one in second if _is_optimizer(work.source, one)]
    if words or optimizers:
        what = f"{model}.compile takes {' and '.join([*optimizers, *(f'{word}=' for word in words)])}"
        raise work.stop(call, f"{what}, which is not Keras's compile: its model takes its steps by itself",
                        "scale its losses in its train_step: see docs/migrate.md")  # fmt: skip


def _is_optimizer(source: Source, node: cst.BaseExpression) -> bool:
    made = [assign.value for assign in source.assigns(dotted(node))] if dotted(node) else [node]
    meanings = [source.meaning(value.func) for value in made if isinstance(value, cst.Call)]
    return any({"optimizers", "optimizer"} & set(meaning.split(".")) for meaning in meanings)


def _prepare(work: Work, stages: Stages, call: cst.Call, model: str) -> None:
    source, edits = work.source, work.edits
    given = argument(call, "optimizer", 0)
    if given is None:
        raise work.stop(call, f"{model}.compile without an optimizer", 'name it: optimizer="rmsprop"')
    statement = source.statement(call)
    scope = source.scope(call)
    named = bool(dotted(given)) and _is_made(source, given, call)
    own = named and binds(source, scope, dotted(given))
    optimizer = dotted(given) if own else ("amp_optimizer" if source.uses("optimizer") else "optimizer")
    made = dotted(given) if named else optimizer
    amp, session = stages.session(call, model)
    lines = [] if named else [f"{optimizer} = {_made(source, given)}"]
    lines += [] if session is None else [session]
    lines += _built_after(work, call, model, amp)
    kept = model if binds(source, scope, model) else "_"
    lines.append(f"{kept}, {optimizer} = {amp}.prepare({model}, {made})")
    for line in lines:
        edits.before(statement, line)
    if not own:
        edits.expression(given, optimizer)


def _built_after(work: Work, call: cst.Call, model: str, amp: str) -> list[str]:
    """Move ``model.build(...)`` from behind ``compile`` before it: what is prepared has variables."""
    source, statement = work.source, work.source.statement(call)
    behind = source.after(statement)
    builds = [c for c in source.methods("build") if dotted(c.func) == f"{model}.build" and source.is_alone(c)]
    place = next((s for s in behind if any(source.statement(c) is s for c in builds)), None)
    if place is None:
        return []
    between = behind[: behind.index(place)]
    if any(isinstance(n, cst.Call) and dotted(n.func) in map(f"{model}.{{}}".format, _TRAINS)
           for s in between for n in walk(s)):  # fmt: skip
        return []  # it has its variables by then
    needed = {dotted(n) for n in walk(place) if isinstance(n, cst.Name | cst.Attribute)}
    if any(assigned(s) & needed for s in between):
        raise work.stop(place, f"{model} is built after it is compiled", f"call {model}.build(...) before compile")
    work.edits.statement(place)
    return [f"with {amp}.scope():\n    {source.code(place).strip()}"]


def _is_made(source: Source, given: cst.BaseExpression, call: cst.Call) -> bool:
    """Whether a variable holds an optimizer and not the name of one."""
    name, scope = dotted(given), source.scope(call)
    if isinstance(scope, cst.FunctionDef) and name in parameters(scope):
        return False
    values = [assign.value for assign in source.assigns(name)]
    return bool(values) and all(isinstance(value, cst.Call) for value in values)


def _in_scope(work: Work, model: str) -> bool:
    found = False
    for name in _TRAINS:
        for fit in work.source.methods(name):
            if dotted(fit.func) == f"{model}.{name}":
                statement = work.source.statement(fit)
                work.edits.wrap(statement, statement, f"with {work.names.amp}.scope():")
                found = True
    return found


def _made(source: Source, given: cst.BaseExpression) -> str:
    """Return the code of the optimizer that ``compile`` was given: bare, by its name, or in a wrapper."""
    if isinstance(given, cst.Call):
        meaning = source.meaning(given.func)
        if (WRAPPER.fullmatch(meaning) or REWRITE.fullmatch(meaning)) and given.args:
            return source.code(given.args[0].value)
        return source.code(given)
    return _by_name(source, given)


def _by_name(source: Source, given: cst.BaseExpression) -> str:
    roots = {meaning: name for name, meaning in source.imports.items()}
    root = next((roots[m] for m in ("tensorflow.keras", "keras", "tf_keras") if m in roots), "")
    root = root or f"{roots.get('tensorflow', 'tf')}.keras"
    code = quoted(source, given) if isinstance(literal(given), str) else source.code(given)
    return f"{root}.optimizers.get({code})"
