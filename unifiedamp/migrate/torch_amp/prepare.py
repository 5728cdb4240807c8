"""``amp.prepare`` behind the session and the optimizers, where both can be seen."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ..nodes import dotted, literal, parameters, walk
from ..report import CannotMigrate
from ..sessions import behind, models_of, owners, prepare_line
from ..source import Source, Statement
from ..training.aliases import Aliases, Key
from ..training.reached import MODEL_WORDS
from ..training.values import peeled
from ..work import Work
from .alike import named_alike
from .grouped import by_function
from .scaler import Scaler
from .session import Session
from .stages import Stages, comes_first
from .taker import taker
from .uses import Uses

_EACH = "prepare each with its model where it is made, before it goes into a list"
_MODEL_CALLS = ("parameters", "named_parameters", "train", "eval", "state_dict", "load_state_dict")


def prepare(work: Work, aliases: Aliases, scaler: Scaler, session: Session, uses: Uses) -> set[Key | None]:
    """Add the calls of ``prepare`` for what the scaler steps; return the groups of the models.

    Raises:
        CannotMigrate: session, models and optimizer can nowhere be seen together.
    """
    groups = {aliases.of(one): one for one in uses.optimizers}
    if not groups:
        return set()  # said of the scaler
    for one in uses.optimizers:
        if isinstance(one, cst.Subscript) and _index(one) is None:
            raise work.stop(one, f"{work.source.code(one)} is one of several", _EACH)
    makers = [
        node
        for node in work.source.nodes
        if isinstance(node, cst.Assign)
        and any(aliases.of(target.target) in groups for target in node.targets)
        and not all(dotted(value) for value in peeled(node.value))
    ]
    for assign in makers:
        if isinstance(assign.value, cst.Subscript) and _index(assign.value) is None:
            raise _several(work, assign.targets[0].target, assign)
    scopes: dict[cst.CSTNode, list[cst.Assign]] = {}
    for assign in makers:
        scopes.setdefault(work.source.scope(assign), []).append(assign)
    home = work.source.scope(scaler.first.assign)
    codes = [work.source.code(one) for one in groups.values()]
    seen = [
        scope
        for scope, assigns in scopes.items()
        if scope is home
        or (scaler.seen_from(assigns[-1]) is not None and not comes_first(work, aliases, scaler, assigns[-1]))
    ]
    at_home = {aliases.of(target.target) for assign in scopes.get(home, ()) for target in assign.targets}
    if at_home >= set(groups):
        seen = [home, *_remade(aliases, scaler, scopes, home)]  # elsewhere others are made for it
    if not seen and _bound(aliases, home, groups):
        return _in_home(work, aliases, scaler, session, home, groups)
    first = None if seen else taker(work, scaler, groups, uses)
    if first is not None:
        return _in_home(work, aliases, scaler, session, work.source.scope(first), groups, first)
    if not seen:
        _refuse_several(work, list(groups.values()))
        raise work.stop(scaler.call, f"no line that makes {' or '.join(codes)} where the GradScaler can be seen",
                        "make the session where model and optimizer are made, and add "
                        "`model, optimizer = amp.prepare(model, optimizer)`")  # fmt: skip
    prepared = set[Key | None]()
    for scope in seen:
        apart = _apart(work.source, scaler, scope, scopes[scope])
        stages = Stages(work, aliases, scaler, session.place, scope, [] if apart else scopes[scope])
        for assign in stages.later:
            prepared |= _in_stage(work, aliases, scaler, stages, assign)
        rest = [one for one in scopes[scope] if one not in stages.later]
        for block, assigns in apart or _parts(work.source, scope, rest):
            if block is not None and scope is home and not apart and not _is_before(work.source, session.place, block):
                block = None
            prepared |= _in_scope(work, aliases, scaler, session, scope, assigns, block)
    return prepared


def _several(work: Work, one: cst.CSTNode, taken: cst.For | cst.Assign) -> CannotMigrate:
    """Return the error for an optimizer that is taken out of several."""
    code = work.source.code
    said = f"for {code(taken.target)} in {code(taken.iter)}" if isinstance(taken, cst.For) else code(taken)
    return work.stop(taken, f"{code(one)} is one of several: {said}", _EACH)


def _refuse_several(work: Work, optimizers: Sequence[cst.BaseExpression]) -> None:
    """Refuse optimizers that a loop goes through.

    Raises:
        CannotMigrate: one is.
    """
    for one in optimizers:
        for above in work.source.above(one):
            if isinstance(above, cst.For) and dotted(one) in {dotted(each) for each in walk(above.target)}:
                raise _several(work, one, above)


def _index(item: cst.Subscript) -> object:
    """Return the constant that a subscript has; None where it is a variable, which takes one of several in turn."""
    index = item.slice[0].slice
    return literal(index.value) if isinstance(index, cst.Index) else None


def _is_before(source: Source, place: Statement, block: cst.CSTNode) -> bool:
    return source.order[place] < source.order[block] and not source.inside(block, place)


def _parts(
    source: Source, scope: cst.CSTNode, assigns: Sequence[cst.Assign]
) -> list[tuple[cst.IndentedBlock | None, list[cst.Assign]]]:
    """Return the lines that make optimizers, and the branch of an ``if`` that alone makes them, or None."""
    parts: dict[cst.IndentedBlock | None, list[cst.Assign]] = {}
    for assign in assigns:
        names = [dotted(target.target) for target in assign.targets]
        made = [one for name in names for one in source.assigns(name) if source.scope(one) is scope]
        made = [one for one in made if dotted(one.value) != "None"]
        given = isinstance(scope, cst.FunctionDef) and set(names) & set(parameters(scope))
        block = None if given or assign not in made else _common_block(source, scope, made)
        branch = block if isinstance(block, cst.IndentedBlock) and _is_branch(source, block) else None
        parts.setdefault(branch, []).append(assign)
    return list(parts.items())


def _apart(
    source: Source, scaler: Scaler, scope: cst.CSTNode, assigns: Sequence[cst.Assign]
) -> list[tuple[cst.IndentedBlock | None, list[cst.Assign]]]:
    """Return the branches of an ``if`` that each make a scaler and optimizers, and train by themselves."""
    made = [one.assign for one in scaler.made if one.call is not None and source.scope(one.assign) is scope]
    if len(made) < 2 or not all(source.exclusive(one, made[0]) for one in made[1:]):
        return []
    parts: list[tuple[cst.IndentedBlock | None, list[cst.Assign]]] = []
    for line in made:
        others = [one for one in made if one is not line]
        blocks = [above for above in source.above(line) if isinstance(above, cst.IndentedBlock)]
        own = [block for block in blocks if not any(source.inside(one, block) for one in others)]
        mine = [assign for assign in assigns if own and source.inside(assign, own[-1])]
        if not mine:
            return []
        parts.append((own[-1], mine))
    return parts if sum(len(mine) for _, mine in parts) == len(assigns) else []


def _is_branch(source: Source, block: cst.IndentedBlock) -> bool:
    return isinstance(source.parents[block], cst.If | cst.Else)


def _remade(
    aliases: Aliases, scaler: Scaler, scopes: dict[cst.CSTNode, list[cst.Assign]], home: cst.CSTNode
) -> list[cst.CSTNode]:
    """Return the other functions that make an attribute's optimizer again, as a search for a learning rate does."""
    names = {aliases.key(target.target) for assign in scopes[home] for target in assign.targets}
    return [
        scope
        for scope, assigns in scopes.items()
        if scope is not home
        and any(aliases.key(target.target) in names for assign in assigns for target in assign.targets)
        and scaler.seen_from(assigns[-1]) is not None
    ]


def _in_scope(
    work: Work,
    aliases: Aliases,
    scaler: Scaler,
    session: Session,
    scope: cst.CSTNode,
    assigns: Sequence[cst.Assign],
    branch: cst.IndentedBlock | None,
) -> set[Key | None]:
    """Prepare where the optimizers are made; in the branch that makes them, if one alone does."""
    source = work.source
    models = list(dict.fromkeys(name for assign in assigns for name in _models(source, aliases, assign)))
    optimizers = list(dict.fromkeys(dotted(t.target) for assign in assigns for t in assign.targets if dotted(t.target)))
    if not models:
        raise work.stop(assigns[0], f"it is not clear which models {_subject(optimizers)}",
                        "add `model, optimizer = amp.prepare(model, optimizer)` by hand")  # fmt: skip
    home = source.scope(scaler.first.assign) is scope
    amp = scaler.session if home else scaler.seen_from(assigns[-1])
    place = session.place if home and branch is None else source.statement(assigns[-1])
    assert amp is not None
    block = branch or _common_block(source, scope, [place, *assigns])
    place = source.in_block(place, block) or place
    wrapped = [a for name in models for a in source.assigns(name) if source.scope(a) is scope]
    made = [one.assign for one in scaler.made if branch is not None and source.inside(one.assign, branch)]
    uses = [use for use in scaler.uses if not _makes(source, use) and (not made or source.inside(use, block))]
    used = min((source.order[use] for use in uses), default=0)
    wrapped = [a for a in wrapped if not any(source.inside(use, a) for use in scaler.uses)]
    wrapped = [a for a in wrapped if not made or source.inside(a, block)]
    others = [*assigns, *made, *(a for a in wrapped if source.order[a] < used or not home)]
    return _write(work, aliases, behind(source, place, others), scope, amp, models, optimizers)


def _in_stage(work: Work, aliases: Aliases, scaler: Scaler, stages: Stages, assign: cst.Assign) -> set[Key | None]:
    """Prepare an optimizer that is made again behind the line that makes it."""
    models = list(dict.fromkeys(_models(work.source, aliases, assign)))
    optimizers = [dotted(target.target) for target in assign.targets if dotted(target.target)]
    amp, scope = scaler.seen_from(assign), work.source.scope(assign)
    if not models or amp is None:
        raise work.stop(assign, f"{' and '.join(optimizers)} is made again here, and its model or the session is not "
                        "known", "`model, optimizer = amp.prepare(model, optimizer)` behind it, by hand")  # fmt: skip
    return _write(work, aliases, stages.behind(assign, models), scope, amp, models, optimizers)


def _in_home(
    work: Work,
    aliases: Aliases,
    scaler: Scaler,
    session: Session,
    home: cst.CSTNode,
    groups: dict[Key | None, cst.BaseExpression],
    first: Statement | None = None,
) -> set[Key | None]:
    """Prepare behind the session's line, or before the ``first`` one, in a function that is given the optimizer."""
    optimizers = [name for group in groups for name in _seen_as(aliases, home, group)[:1]]
    models = [name for group in model_groups(work.source, aliases) for name in _seen_as(aliases, home, group)[:1]]
    models += named_alike(work.source, home, optimizers)
    models = models or [name for name in MODEL_WORDS if aliases.scopes.binds(home, name)]
    models = models or [name for name in map("self.{}".format, MODEL_WORDS) if _computes(work.source, home, name)]
    if not models:
        raise work.stop(scaler.call, f"it is not clear which models {_subject(optimizers)}",
                        "add `model, optimizer = amp.prepare(model, optimizer)` by hand")  # fmt: skip
    models = list(dict.fromkeys(models))
    if first is not None:
        amp = scaler.seen_from(first) or scaler.session
        return _write(work, aliases, first, home, amp, models, optimizers, before=True)
    return _write(work, aliases, session.place, home, scaler.session, models, optimizers)


def _subject(optimizers: Sequence[str]) -> str:
    return f"{' and '.join(optimizers)} {'train' if len(optimizers) > 1 else 'trains'}"


def _computes(source: Source, scope: cst.CSTNode, name: str) -> bool:
    """Whether a method calls what its class keeps under a name."""
    called = any(dotted(call.func) == name and source.scope(call) is scope for call in source.of(cst.Call))
    return called and bool(source.assigns(name))


def _write(
    work: Work,
    aliases: Aliases,
    place: Statement,
    scope: cst.CSTNode,
    amp: str,
    models: list[str],
    optimizers: list[str],
    *,
    before: bool = False,
) -> set[Key | None]:
    """Add the line; what the function does not bind itself is prepared without a new value."""
    objects = [*models, *optimizers]
    if all("." in name or aliases.scopes.binds(scope, name) for name in objects):
        line = prepare_line(amp, models, optimizers)
    else:
        line = f"{amp}.prepare({', '.join(objects)})"
    (work.edits.before if before else work.edits.after)(place, line)
    owner = aliases.scopes.class_of(scope) or scope
    return {aliases.group((owner if name.startswith("self.") else scope, name)) for name in models}


def _models(source: Source, aliases: Aliases, assign: cst.Assign) -> list[str]:
    """Return the models that an optimizer is made of; where no ``parameters()`` says, those that it is given."""
    scope = source.scope(assign)
    models = models_of(source, assign.value, scope) or by_function(source, aliases, assign)
    models = models or _of_parts(source, scope, assign)
    known = model_groups(source, aliases)
    if not models and isinstance(assign.value, cst.Call):
        given = [arg.value for arg in assign.value.args if dotted(arg.value)]
        models = [dotted(g) for g in given if aliases.of(g) in known or dotted(g).rpartition(".")[2] in MODEL_WORDS]
    if not models:
        models = [name for group in known for name in _seen_as(aliases, scope, group)[:1]]
    return [name.removesuffix(".module") for name in models]


def _of_parts(source: Source, scope: cst.CSTNode, assign: cst.Assign) -> list[str]:
    """Return the models whose parameters were collected in lists before."""
    return [
        owner
        for node in source.nodes
        if isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and node.func.attr.value in ("parameters", "named_parameters")
        and source.scope(node) is scope
        and source.order[node] < source.order[assign]
        and dotted(node.func.value)
        for owner in owners(source, dotted(node.func.value), scope)
    ]


def model_groups(source: Source, aliases: Aliases) -> list[Key | None]:
    """Return the groups of what is treated as a model."""
    found = [
        aliases.of(node.func.value)
        for node in source.nodes
        if isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and node.func.attr.value in _MODEL_CALLS[:4]
    ]
    optimizers = {aliases.of(c.func.value) for c in source.methods("zero_grad") if isinstance(c.func, cst.Attribute)}
    stepped = {aliases.of(c.func.value) for c in source.methods("step") if isinstance(c.func, cst.Attribute)}
    return [group for group in dict.fromkeys(found) if group is not None and group not in optimizers & stepped]


def _seen_as(aliases: Aliases, scope: cst.CSTNode, group: Key | None) -> list[str]:
    """Return the names that a function itself has for a group."""
    owner = aliases.scopes.class_of(scope) if isinstance(scope, cst.FunctionDef) else None
    keys = [key for key in aliases.keys if aliases.group(key) == group and key[0] in (scope, owner)]
    return [key[1] for key in keys]


def _bound(aliases: Aliases, scope: cst.CSTNode, groups: dict[Key | None, cst.BaseExpression]) -> bool:
    return all(_seen_as(aliases, scope, group) for group in groups)


def _common_block(source: Source, scope: cst.CSTNode, nodes: Sequence[cst.CSTNode]) -> cst.IndentedBlock | cst.Module:
    """Return the innermost block that holds all nodes."""
    for above in source.above(nodes[0]):
        block = above if isinstance(above, cst.IndentedBlock | cst.Module) else None
        if block is not None and all(source.in_block(node, block) is not None for node in nodes):
            return block
        if above is scope:
            break
    return source.block(source.statement(nodes[0]))


def _makes(source: Source, use: cst.BaseExpression) -> bool:
    return isinstance(source.parents[use], cst.AssignTarget | cst.AnnAssign)
