"""Where models are made: those lines go under ``with amp.scope():``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import libcst as cst

from ..nodes import assigned, dotted, walk
from ..source import Source, Statement
from ..work import Work
from .makers import built_by, check_built, handed_in, made_inline, makers_of
from .start import Start


@dataclass
class Trained:
    """What the file trains.

    Attributes:
        models: the code of a model → where it is trained.
        users: what uses the session.
        prepared: the lines that prepare, with the statements that they go behind.
    """

    models: dict[str, cst.CSTNode] = field(default_factory=dict)
    users: list[cst.CSTNode] = field(default_factory=list)
    prepared: list[tuple[Statement, str]] = field(default_factory=list)


def scope_models(work: Work, start: Start, trained: Trained) -> None:
    """Make each model in the session's scope; one made before the policy, elsewhere or without variables blocks."""
    waiting = [(model, work.source.scope(use), use) for model, use in trained.models.items()]
    seen: set[tuple[str, cst.CSTNode]] = set()
    while waiting:
        model, scope, use = waiting.pop()
        if (model, scope) in seen:
            continue
        seen.add((model, scope))
        makers = makers_of(work.source, model, scope)
        elsewhere, inline = handed_in(work.source, model, scope), made_inline(work.source, model, scope)
        for made in inline:
            check_built(work, model, made, made, use)
            _name(work, start, trained, model, made)
        if not makers and not elsewhere and not inline:
            what = f"{model} is made outside this file, where the policy would not reach it"
            work.block(use, what, "make it in `with amp.scope():`")
        waiting += elsewhere
        for assign in makers:
            if isinstance(assign.value, cst.Name | cst.Attribute):
                waiting.append((dotted(assign.value), work.source.scope(assign), assign))
            elif isinstance(value := _value(assign, model), cst.Call):
                check_built(work, model, assign, value, use)
                _scope(work, start, trained, model, assign, use)
            else:
                work.block(assign, f"{model} comes out of an expression", "make it in `with amp.scope():`")


def _value(assign: cst.Assign, name: str) -> cst.BaseExpression:
    """Return what an assignment gives a name: of ``a, b = f(), g()`` its part."""
    target, value = assign.targets[0].target, assign.value
    if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple) and len(target.elements) == len(value.elements):
        names = [dotted(each.value) for each in target.elements]
        return value.elements[names.index(name)].value if name in names else value
    return value


def scope_layers(work: Work, start: Start) -> None:
    """Make the layers that stand outside functions in the session's scope too: models in functions are put together of
    them.
    """
    source = work.source
    covered = {each for wrap in work.edits.wraps for each in _between(source, wrap.first, wrap.last)}
    for assign in source.assigned_in(source.module):
        statement = source.statement(assign)
        if statement in covered or not isinstance(assign.value, cst.Call) or statement in work.edits.lines:
            continue
        early = source.scope(start.call) is source.module and source.order[assign] < source.order[start.call]
        used = any(source.scope(use) is not source.module for use in source.uses(dotted(assign.targets[0].target)))
        if used and not early and _makes_layers(source, statement):
            work.edits.wrap(statement, statement, f"with {work.names.amp}.scope():")


def _between(source: Source, first: Statement, last: Statement) -> list[Statement]:
    body = [s for s in source.block(first).body if isinstance(s, Statement)]
    return body[body.index(first) : body.index(last) + 1]


def additions(source: Source, model: str, scope: cst.CSTNode) -> list[cst.Call]:
    """Return the calls of ``model.add(...)`` and ``model.build(...)`` in a function."""
    calls = [*source.methods("add"), *source.methods("build")]
    return [c for c in calls if dotted(c.func).rpartition(".")[0] == model and source.scope(c) is scope]


def _scope(work: Work, start: Start, trained: Trained, model: str, assign: cst.Assign, use: cst.CSTNode) -> None:
    source = work.source
    early = source.order[assign] < source.order[start.call]
    if early and source.scope(assign) is source.scope(start.call):
        work.block(assign, f"{model} is made before the policy is set", "make the session first")
        return
    statement = source.statement(assign)
    block = source.block(statement)
    if source.scope(assign) is source.scope(start.call) and not _in_reach(source, start.call, assign):
        return  # a branch without the policy: its model was never a mixed one
    body = [s for s in block.body if isinstance(s, Statement)]
    calls = [*additions(source, model, source.scope(assign)), *built_by(source, model, assign, use)]
    calls = [call for call in calls if source.statement(call) not in work.edits.lines]  # moved before compile
    adds = [each for each in (source.in_block(call, block) for call in calls) if each is not None]
    last = max([body.index(statement), *(body.index(each) for each in adds)])
    trains = [a for model in trained.models for a in source.assigns(model)]
    alike = {_called(a.value) for a in (assign, *trains) if source.block(source.statement(a)) is block} - {""}
    last = max(last, _beside(body, body.index(statement), alike))
    first = _first_layer(source, start, body, body.index(statement), adds)
    trained.users.append(statement)
    work.edits.wrap(body[first], body[last], f"with {work.names.amp}.scope():")


def _name(work: Work, start: Start, trained: Trained, model: str, value: cst.Call) -> None:
    """Make a model that is made in a call's arguments on a line before, in the session's scope."""
    source, statement = work.source, work.source.statement(value)
    if source.scope(value) is source.scope(start.call) and source.order[value] < source.order[start.call]:
        work.block(value, f"{model} is made before the policy is set", "make the session first")
        return
    if not isinstance(statement, cst.SimpleStatementLine) or "." in model or _is_taken(source, model, value):
        what = f"{source.code(value)} makes a model inside another call"
        work.block(value, what, "make it on a separate line, in `with amp.scope():`")
        return
    trained.users.append(statement)
    work.edits.before(statement, f"with {work.names.amp}.scope():\n    {model} = {source.code(value)}")
    work.edits.expression(value, model)


def _is_taken(source: Source, name: str, where: cst.CSTNode) -> bool:
    """Whether a function has a variable of this name already; names of arguments are none."""
    uses = [use for use in source.of(cst.Name) if use.value == name and source.scope(use) is source.scope(where)]
    parents = [(use, source.parents[use]) for use in uses]
    return any(not isinstance(parent, cst.Arg) or parent.keyword is not use for use, parent in parents)


def _beside(body: Sequence[Statement], place: int, alike: set[str]) -> int:
    """Return the last of the lines from ``place`` on that make models as trained ones are: teachers, targets."""
    while place + 1 < len(body) and _maker(body[place + 1]) in alike:
        place += 1
    return place


def _maker(statement: Statement) -> str:
    """Return what a line calls that is an assignment and nothing else."""
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    return _called(small.value) if isinstance(small, cst.Assign) else ""


def _called(value: cst.BaseExpression) -> str:
    """Return the function that ``make(...)`` calls first, also in ``get_class(name)(config)()``."""
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Call):
        value = value.func
    return dotted(value.func) if isinstance(value, cst.Call) else ""


def _in_reach(source: Source, made: cst.CSTNode, node: cst.CSTNode) -> bool:
    """Whether a node is in the block, or within one, in which a session is made; conditions alone keep it out."""
    for one in source.above(source.statement(made)):
        if isinstance(one, cst.IndentedBlock) and isinstance(source.parents[one], cst.If | cst.Else):
            return source.inside(node, one)
        if one is source.scope(made):
            break
    return True


def _first_layer(source: Source, start: Start, body: Sequence[Statement], index: int, adds: Sequence[Statement]) -> int:
    """Return the first of the statements that make the layers of the model made at ``index``, those added later too."""
    first, needed = index, {name for one in (body[index], *adds) for name in _names(one)}
    for place in range(index - 1, -1, -1):
        if source.inside(start.call, body[place]):
            break
        if (assigned(body[place]) - {"self"}) & needed:
            needed |= _names(body[place])
            first = place if _makes_layers(source, body[place]) else first
    return first


def _makes_layers(source: Source, statement: Statement) -> bool:
    calls = [node for node in walk(statement) if isinstance(node, cst.Call)]
    return any(_is_layer(source, call) for call in calls)


_LAYERS = {"keras", "layers", "applications", "tensorflow_hub", "keras_hub", "keras_cv", "keras_nlp"}
_OTHERS = {
    "numpy", "pandas", "os", "sys", "json", "sklearn", "argparse", "time", "cv2", "matplotlib", "random", "math",
    "glob", "pathlib", "datetime", "tqdm", "yaml", "pickle", "PIL", "scipy", "tensorflow", "tensorflow_datasets",
    "absl", "logging", "collections", "itertools", "functools", "re", "shutil", "copy", "h5py", "skimage", "seaborn",
    "gc",
}  # fmt: skip


def _is_layer(source: Source, call: cst.Call, depth: int = 2) -> bool:
    """Whether a call makes layers: Keras's do, functions of this file that call such, and those of unknown modules."""
    meaning = source.meaning(call.func)
    parts = meaning.split(".")
    if _LAYERS & set(parts):
        return not {"losses", "metrics", "optimizers", "callbacks", "datasets", "utils", "preprocessing"} & set(parts)
    root = dotted(call.func).partition(".")[0]
    if root in source.imports:
        return parts[0] not in _OTHERS
    function = source.functions().get(parts[-1])
    if function is None or not depth:
        return False
    return any(_is_layer(source, n, depth - 1) for n in walk(function) if isinstance(n, cst.Call))


def _names(node: cst.CSTNode) -> set[str]:
    names = {one.value for one in walk(node) if isinstance(one, cst.Name)}
    return (names | {dotted(one) for one in walk(node) if isinstance(one, cst.Attribute)}) - {"self", ""}
