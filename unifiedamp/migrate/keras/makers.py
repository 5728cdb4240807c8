"""Where a Keras model comes from: the lines that make it, through parameters, and whether it has variables then."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from ..nodes import argument, dotted, keywords, literal, parameters, walk
from ..source import Source
from ..work import Work

Scope = cst.FunctionDef | cst.Module
_SHAPES = {"input_shape", "input_dim", "batch_input_shape", "batch_shape", "shape"}
_INPUTS = ("Input", "InputLayer")
_TOLD = {"mixed_precision", "use_mixed_precision", "amp", "use_amp", "fp16", "use_fp16", "loss_scale", "mixed"}


def makers_of(source: Source, model: str, scope: cst.CSTNode) -> list[cst.Assign]:
    """Return the assignments of a model that its use in ``scope`` can see."""
    assigns = [a for a in source.assigns(model) if not _is_prepared(a) and dotted(a.value) != "None"]
    assigns += _unpacked(source, model)
    if model.startswith("self."):
        return assigns
    here = [a for a in assigns if source.scope(a) is scope]
    if here or (isinstance(scope, cst.FunctionDef) and model in parameters(scope)):
        return here
    outer = [a for a in assigns if source.inside(scope, source.scope(a))]
    return outer or [a for a in assigns if source.scope(a) is source.module or _declared(source, model, a)]


def handed_in(source: Source, model: str, scope: cst.CSTNode) -> list[tuple[str, Scope, cst.CSTNode]]:
    """Return (name, function, use) of what callers in this file pass as a model that is a parameter."""
    given = _given(source, model, scope)
    return [(dotted(value), source.scope(call), call) for call, value in given if dotted(value)]


def made_inline(source: Source, model: str, scope: cst.CSTNode) -> list[cst.Call]:
    """Return the calls that make, in the arguments of callers in this file, a model that is a parameter."""
    return [value for _, value in _given(source, model, scope) if isinstance(value, cst.Call)]


def _given(source: Source, model: str, scope: cst.CSTNode) -> list[tuple[cst.Call, cst.BaseExpression]]:
    """Return the calls of a function in this file, with what they pass as a parameter."""
    if not isinstance(scope, cst.FunctionDef) or model not in parameters(scope):
        return []
    names = parameters(scope)
    position = names.index(model) - (1 if names[0] == "self" else 0)
    calls = _constructions(source, scope) if scope.name.value == "__init__" else []
    calls = calls or [c for c in source.of(cst.Call) if dotted(c.func).rpartition(".")[2] == scope.name.value]
    found = [(call, argument(call, model, position)) for call in calls]
    return [(call, value) for call, value in found if value is not None]


def _constructions(source: Source, init: cst.FunctionDef) -> list[cst.Call]:
    """Return the calls that run a class's ``__init__``: of the class, of those that inherit it, and of ``super()``."""
    owner = _class_of(source, init)
    classes = [] if owner is None else [owner]
    for one in classes:
        classes += [each for each in source.of(cst.ClassDef) if _inherits(each, one) and each not in classes]
    own = {each: _class_of(source, each) for each in source.of(cst.FunctionDef) if each.name.value == "__init__"}
    names = {one.name.value for one in classes if one is owner or one not in own.values()}
    heirs = [each for each, of in own.items() if of is not None and owner is not None and _inherits(of, owner)]
    return [
        call for call in source.of(cst.Call)
        if dotted(call.func).rpartition(".")[2] in names or (_is_super(call) and source.scope(call) in heirs)
    ]  # fmt: skip


def _class_of(source: Source, function: cst.FunctionDef) -> cst.ClassDef | None:
    return next((one for one in source.above(function) if isinstance(one, cst.ClassDef)), None)


def _inherits(one: cst.ClassDef, base: cst.ClassDef) -> bool:
    return base.name.value in [dotted(each.value).rpartition(".")[2] for each in one.bases]


def _is_super(call: cst.Call) -> bool:
    func = call.func
    around = func.value if isinstance(func, cst.Attribute) and func.attr.value == "__init__" else None
    return isinstance(around, cst.Call) and dotted(around.func) == "super"


def check_built(work: Work, model: str, assign: cst.Assign | cst.Call, value: cst.Call, use: cst.CSTNode) -> None:
    """Block on a model that has no variables when it is prepared: a Sequential without an input shape, or a subclassed
    model, that nothing builds before its ``use``. Note a model of which this cannot be seen.

    Args:
        work: the migration.
        model: its code.
        assign: the line that makes it; the call itself, where it has no name.
        value: the call that makes it.
        use: where it is trained.
    """
    source = work.source
    _refuse_scaling(work, model, value)
    if _is_no_model(source, source.meaning(value.func).rpartition(".")[2]):
        what = f"{model} is made of {source.code(value.func)}, which is no Keras model: amp.prepare takes those alone"
        work.block(assign, what, "make it a tf.keras.Model whose constructor makes its layers, and build it")
        return
    if isinstance(assign, cst.Assign) and _is_built(work, model, assign, use):
        return
    returned = _returned(source, value)
    if any(_has_variables(source, each, model) is False for each in returned):
        what = f"{model} has no variables before its first batch, so no optimizer can be prepared for it"
        write = f"give its first layer an input shape, or call {model}.build(...) before it is compiled or trained"
        work.block(assign, what, write)
    unseen = [layer for each in returned if (layer := _unseen_layer(source, each, model)) is not None]
    here = {*source.functions(), *(one.name.value for one in source.of(cst.ClassDef))}
    name = source.meaning(value.func)
    if unseen:
        _note_unseen(work, model, assign, f"the first layer of {model} is made by {dotted(unseen[0].func)}")
        return
    known = name.rpartition(".")[2] in here or _is_keras(name) or name.endswith(("Model", "load_model"))
    if returned in ([], [value]) and not known:
        _note_unseen(work, model, assign, f"{model} is made by {dotted(value.func) or 'an expression'}")


def _note_unseen(work: Work, model: str, assign: cst.CSTNode, what: str) -> None:
    note = f"if that model has no variables yet, call {model}.build(...) before amp.prepare"
    work.note(assign, f"{what}, outside this file", note)


def _refuse_scaling(work: Work, model: str, value: cst.Call) -> None:
    """Block on a model of other code that is told of mixed precision: it scales its losses by itself."""
    told = [arg for arg in value.args if arg.keyword is not None and arg.keyword.value in _TOLD]
    told = [arg for arg in told if literal(arg.value) is not False and dotted(arg.value) != "None"]
    name = work.source.meaning(value.func)
    if told and not _is_keras(name) and name.rpartition(".")[2] not in work.source.functions():
        what = f"{model} is made with {work.source.code(told[0]).rstrip(', ')}, and may scale its losses by itself"
        work.block(value, what, "turn that off, so that the session alone scales; then run migrate again")


def _is_no_model(source: Source, name: str, depth: int = 3) -> bool:
    """Whether a class of this file defines ``__call__``, which Keras models do not, or has no base class."""
    classes = [one for one in source.of(cst.ClassDef) if one.name.value == name]
    if len(classes) != 1 or not depth:
        return False
    methods = [one.name.value for one in classes[0].body.body if isinstance(one, cst.FunctionDef)]
    bases = [source.meaning(base.value) for base in classes[0].bases if base.keyword is None]
    own = "__call__" in methods and not any(map(_is_keras, bases))
    plain = all(base in ("object", "tensorflow.Module") for base in bases)
    return own or plain or any(_is_no_model(source, base, depth - 1) for base in bases)


def _is_keras(meaning: str) -> bool:
    return bool({"keras", "tf_keras"} & set(meaning.split(".")))


def check_models(work: Work, models: Mapping[str, cst.CSTNode]) -> None:
    """Block on models without variables where nothing else is asked of how they are made."""
    for model, use in models.items():
        for assign in makers_of(work.source, model, work.source.scope(use)):
            if isinstance(assign.value, cst.Call):
                check_built(work, model, assign, assign.value, use)


def _declared(source: Source, name: str, assign: cst.Assign) -> bool:
    """Whether an assignment's function declares the name global."""
    scope = source.scope(assign)
    return any(item.name.value == name for g in source.of(cst.Global) if source.scope(g) is scope for item in g.names)


def _is_prepared(assign: cst.Assign) -> bool:
    return isinstance(assign.value, cst.Call) and dotted(assign.value.func).endswith(".prepare")


def _unpacked(source: Source, model: str) -> list[cst.Assign]:
    found = []
    for assign in source.of(cst.Assign):
        target = assign.targets[0].target
        if isinstance(target, cst.Tuple | cst.List) and model in [dotted(e.value) for e in target.elements]:
            found.append(assign)
    return found


def _is_built(work: Work, model: str, assign: cst.Assign, use: cst.CSTNode) -> bool:
    """Whether something builds a model before it is prepared."""
    source = work.source
    builds = [c for c in source.methods("build") if dotted(c.func) == f"{model}.build"]
    elsewhere = [c for c in builds if source.scope(c) not in (source.scope(assign), source.scope(use))]
    moved = [c for c in builds if source.statement(c) in work.edits.lines]
    return bool(elsewhere or moved or built_by(source, model, assign, use))


def built_by(source: Source, model: str, assign: cst.Assign, use: cst.CSTNode) -> list[cst.Call]:
    """Return the calls that give a model its variables, between the line that makes it and its training."""
    scope, block = source.scope(assign), source.block(source.statement(assign))
    calls = [c for c in source.of(cst.Call) if dotted(c.func) in (model, f"{model}.build")]
    if source.scope(use) is not scope and not source.inside(use, scope):
        calls = [c for c in source.methods("build") if c in calls]  # a model is called for many reasons
    after = [s for s in source.after(source.statement(assign)) if not isinstance(s, cst.FunctionDef | cst.ClassDef)]
    ends = [s for s in after if isinstance(s, cst.For | cst.While) or source.inside(use, s)]
    last = min(map(source.order.__getitem__, ends), default=len(source.nodes))
    calls = [c for c in calls if source.block(source.statement(c)) is block and source.order[c] < last]
    if source.scope(use) is not scope:
        return calls
    here = [c for c in source.methods("build") if dotted(c.func) == f"{model}.build" and source.scope(c) is scope]
    return calls + [c for c in here if source.order[c] < source.order[use] and c not in calls]


def _returned(source: Source, value: cst.Call, depth: int = 3) -> list[cst.Call]:
    """Return the calls that make what a call returns, through functions of this file."""
    name = source.meaning(value.func).rpartition(".")[2]
    function = source.functions().get(name)
    if function is None or function.name.value == "__init__" or not depth:
        return [value]
    found: list[cst.Call] = []
    for node in walk(function):
        if isinstance(node, cst.Return) and node.value is not None and source.scope(node) is function:
            given: cst.BaseExpression = node.value
            values = [a.value for a in source.assigns(dotted(given)) if source.scope(a) is function]
            for each in values or [given]:
                found += _returned(source, each, depth - 1) if isinstance(each, cst.Call) else []
    return found


def _has_variables(source: Source, value: cst.Call, model: str) -> bool | None:
    """Whether a made model has variables; None where this cannot be seen."""
    name = source.meaning(value.func).rpartition(".")[2]
    if name == "Sequential":
        first = _first_layer(source, value, model)
        return None if first is None else _has_shape(source, first)
    classes = [c for c in source.of(cst.ClassDef) if c.name.value == name]
    if len(value.args) > 1 and name not in source.functions():
        return True  # inputs and outputs, and no __init__ that takes them for something else
    return not (classes and any("Model" in dotted(base.value) for base in classes[0].bases))


def _first_layer(source: Source, value: cst.Call, model: str) -> cst.BaseExpression | None:
    layers = argument(value, "layers", 0)
    if isinstance(layers, cst.List | cst.Tuple) and layers.elements:
        return layers.elements[0].value
    if layers is not None:
        return None
    made = source.assignment(value)
    name = dotted(made.targets[0].target) if made is not None else model
    adds = [c for c in source.methods("add") if dotted(c.func) == f"{name}.add" and c.args]
    adds = [c for c in adds if source.scope(c) is source.scope(value) and source.order[c] > source.order[value]]
    return adds[0].args[0].value if adds else None


def _unseen_layer(source: Source, value: cst.Call, model: str) -> cst.Call | None:
    """Return the call of another module that makes a Sequential's first layer, of which no shape is seen."""
    if source.meaning(value.func).rpartition(".")[2] != "Sequential":
        return None
    layer = _first_layer(source, value, model)
    assigns = source.assigns(dotted(layer)) if layer is not None and dotted(layer) else []
    layer = assigns[0].value if len(assigns) == 1 else layer
    if not isinstance(layer, cst.Call) or _has_shape(source, layer) is not None:
        return None
    return layer if dotted(layer.func).partition(".")[0] in source.imports else None


def _has_shape(source: Source, layer: cst.BaseExpression) -> bool | None:
    if not isinstance(layer, cst.Call):
        return None
    name = source.meaning(layer.func)
    if name.rpartition(".")[2] in _INPUTS or "applications" in name or name.rpartition(".")[2] in source.functions():
        return True
    calls = [n for n in walk(layer) if isinstance(n, cst.Call)]
    return any(keywords(call) & _SHAPES for call in calls) or ("layers" not in name.split(".") and None)
