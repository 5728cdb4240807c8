"""What must hold in a migrated training script; each rule yields the node, what is wrong, and what to write."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ..nodes import dotted, parameters, walk
from ..source import Source
from ..torch_amp.arguments import SCALERS
from ..torch_amp.prepare import model_groups
from ..training.aliases import Key
from ..training.banned import Banned
from ..training.clips import CLIPS, EMPTIES
from ..training.dataflow import names_in
from ..training.regions import prefixes
from .facts import Facts, optimizer_like, prepared_by, scaled_for

Problem = tuple[cst.CSTNode, str, str]
_SCALED = "`with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()`"
_ORDER = ("scale_loss", "step", "prepare", "unscale", "clip_grad_norm", "clip_grad_value")


def leftovers(facts: Facts) -> Iterator[Problem]:
    """Nothing of the old API is used any more."""
    for node in facts.source.nodes:
        if not isinstance(node, cst.Attribute | cst.Name):
            continue
        meaning = facts.source.meaning(node)
        named = isinstance(node, cst.Name) and not facts.source.is_reference(node)
        if (meaning.startswith("apex.amp") or meaning in SCALERS) and not named and not _imported(facts, node):
            yield node, f"{facts.source.code(node)} is left", "the session's call, or remove it"
        if isinstance(node, cst.Attribute) and node.attr.value == "unscale_":
            yield node, f"{facts.source.code(node)} is left", "`amp.unscale(optimizer)`"


def bare_backwards(facts: Facts) -> Iterator[Problem]:
    """Every loss that prepared optimizers train goes through the session."""
    for call in facts.source.methods("backward"):
        assert isinstance(call.func, cst.Attribute)
        receiver = call.func.value
        text = dotted(receiver) or facts.source.code(receiver)
        if facts.is_handle(receiver) or any(arg.keyword is None and arg.star != "**" for arg in call.args):
            continue
        if isinstance(receiver, cst.Call) and dotted(receiver.func).endswith(".scale"):
            yield call, f"{facts.source.code(call)} is left", _SCALED
        elif ("loss" in text.lower() or "err" in text.lower()) and not _steps_others(facts, call):
            yield call, f"{facts.source.code(call)} passes the session by", _SCALED


def bare_steps(facts: Facts) -> Iterator[Problem]:
    """Every step of a prepared optimizer is the session's: its gradients are scaled."""
    names = {code.rpartition(".")[2] for code in facts.optimizers.values()}
    for call in facts.source.methods("step"):
        assert isinstance(call.func, cst.Attribute)
        receiver = call.func.value
        if facts.aliases.of(receiver) in facts.sessions:
            continue
        known = facts.aliases.of(receiver) in facts.optimizers or (
            dotted(receiver).rpartition(".")[2] in names and not _fresh(facts, receiver) and not _apart(facts, call)
        )
        if known and not call.args and not facts.aliases.reached.functions(call):
            yield call, f"{facts.source.code(call)} would apply scaled gradients", "`amp.step(optimizer)`"


def clipping(facts: Facts) -> Iterator[Problem]:
    """Gradients are clipped by the session, or behind ``amp.unscale``."""
    for node in facts.source.nodes:
        if isinstance(node, cst.Call) and dotted(node.func).rpartition(".")[2] in CLIPS:
            if facts.aliases.of(getattr(node.func, "value", node.func)) in facts.sessions:
                continue
            for place in _places(facts, node):
                if not _is_unscaled(facts, place):
                    yield (
                        node,
                        f"{facts.source.code(node)} clips gradients that are still scaled",
                        "`amp.clip_grad_norm(optimizer, max_norm)`, or `amp.unscale(optimizer)` before it",
                    )


def regions(facts: Facts) -> Iterator[Problem]:
    """Regions hold forward passes alone, and each scaled loss has one."""
    inside = {node for with_ in facts.regions() for node in walk(with_.body)}
    if inside:
        for call in facts.calls(*_ORDER):
            if call in inside:
                yield call, f"{facts.source.code(call)} inside amp.autocast()", "it behind the region"
        for call in facts.source.methods("backward"):
            assert isinstance(call.func, cst.Attribute)
            if call in inside and "loss" in dotted(call.func.value) and not facts.is_handle(call.func.value):
                yield call, f"{facts.source.code(call)} inside amp.autocast()", "it behind the region"
    around: list[cst.CSTNode] = [facts.source.scope(one) for one in facts.calls("autocast")]
    for call in facts.calls("scale_loss"):
        if not _near(facts, facts.source.scope(call), around):
            yield call, "no region computes this loss", "compute it in `with amp.autocast():`"


def banned(facts: Facts) -> Iterator[Problem]:
    """No region holds what CUDA's autocast raises an error for."""
    finder, inside = Banned(facts.source, facts.aliases), set(facts.regions())
    for with_ in facts.regions():
        for call in finder.within(with_.body):
            around = next((above for above in facts.source.above(call) if above in inside), with_)
            assert isinstance(around, cst.With)
            if any("enabled=False" in facts.source.code(item) for item in around.items):
                continue
            code = facts.source.code(call.func)
            write = "the model's output on a line before, or `with amp.autocast(enabled=False):` around it"
            yield call, f"{code}(...) in amp.autocast(), which CUDA's autocast forbids", write


def prepared(facts: Facts) -> Iterator[Problem]:
    """What losses are scaled for is prepared, and steps."""
    groups = {facts.aliases.of(one) for call in facts.calls("prepare") for one in prepared_by(call)}
    stepped = {facts.aliases.of(arg.value) for call in facts.calls("step") for arg in call.args[:1]}
    for call in facts.calls("scale_loss"):
        for one in scaled_for(call):
            code = facts.source.code(one)
            if not _is_bound(facts, one):
                what = f"{code}, which this loss trains, is not known in {_called(facts.source.scope(call))}"
                yield call, what, f"{code} as a parameter there, or keep it as an attribute"
            elif facts.aliases.of(one) not in groups:
                yield (
                    call,
                    f"{code} is not known to be prepared",
                    "`model, optimizer = amp.prepare(model, optimizer)`",
                )
            elif facts.aliases.of(one) not in stepped:
                yield call, f"no step of {code} was found", "`amp.step(optimizer)` where its gradients are complete"


def trained(facts: Facts) -> Iterator[Problem]:
    """Optimizers are prepared where their losses are scaled: a training loop in another file would not be."""
    if facts.calls("scale_loss"):
        return
    said, models = set[str](), model_groups(facts.source, facts.aliases)
    for call in facts.calls("prepare"):
        prepared = [arg.value for arg in call.args[1:] if facts.aliases.of(arg.value) not in models]
        named = [one for one in prepared if optimizer_like(facts.source, one)]  # beside models of other files
        codes = [code for code in map(facts.source.code, named or prepared[-1:]) if code not in said]
        if codes:
            said.update(codes)  # once, where branches prepare them
            write = "`amp.scale_loss` in its training loop: migrate the file that trains together with this one"
            yield call, f"nothing here scales a loss for {' and '.join(codes)}", write


def in_time(facts: Facts) -> Iterator[Problem]:
    """What a function trains is prepared before."""
    order, source = facts.source.order, facts.source
    training = facts.calls("scale_loss", "step")
    for scope in {source.scope(call) for call in facts.calls("prepare")}:
        first = min(facts.in_scope(facts.calls("prepare"), scope), key=order.__getitem__)
        for call in facts.in_scope(source.of(cst.Call), scope):
            trains = call in training or any(
                source.inside(one, function) for function in facts.reached(call) for one in training
            )
            if trains and order[call] < order[first] and not source.exclusive(call, first):
                yield first, f"{source.code(first)} comes behind {source.code(call)}", "it before what trains"
                break


def cleared(facts: Facts) -> Iterator[Problem]:
    """Parameters' gradients are read before the step, which clears them."""
    order, source = facts.source.order, facts.source
    for node in source.of(cst.Attribute):
        if node.attr.value != "grad" or not isinstance(source.parents[node], cst.Attribute | cst.Arg):
            continue
        if not _of_prepared(facts, node) or (_asks_for_gradient(source, node) and not _edits(source, node)):
            continue
        calls = facts.in_scope(facts.calls("step", "scale_loss"), source.scope(node))
        before = max((one for one in calls if order[one] < order[node]), key=order.__getitem__, default=None)
        behind = min((one for one in calls if order[one] > order[node]), key=order.__getitem__, default=None)
        if behind is not None and dotted(behind.func).endswith(".step"):
            continue  # of another optimizer, whose gradients these are
        if before is not None and dotted(before.func).endswith(".step"):
            what = f"{source.code(node)} is read behind {source.code(before)}, which clears gradients"
            yield node, what, "`amp.unscale(optimizer)`, and read them, before the step"


def unfinished(facts: Facts) -> Iterator[Problem]:
    """Between unscaling an optimizer's gradients and scaling its next loss, it steps."""
    order, source = facts.source.order, facts.source
    for call in facts.calls("unscale", "clip_grad_norm", "clip_grad_value"):
        code, block = [source.code(arg.value) for arg in call.args[:1]], source.block(source.statement(call))
        later = [
            one
            for one in facts.in_scope(facts.calls("step", "scale_loss"), source.scope(call))
            if order[one] > order[call] and source.in_block(one, block) is not None
        ]
        mine = [one for one in later if code[0] in _trained(source, one)] if code else []
        first = min(mine, key=order.__getitem__, default=None)
        if first is not None and dotted(first.func).endswith(".scale_loss"):
            yield first, f"{code[0]} is unscaled before, and does not step in between", f"`amp.step({code[0]})` there"


RULES = (
    leftovers,
    bare_backwards,
    bare_steps,
    clipping,
    regions,
    banned,
    prepared,
    trained,
    in_time,
    cleared,
    unfinished,
)


def _is_bound(facts: Facts, node: cst.BaseExpression) -> bool:
    """Whether a function, one around it, or the file gives a name its value."""
    name, scopes = dotted(node).partition(".")[0], [facts.source.scope(node), facts.source.root(node)]
    scopes += [above for above in facts.source.above(node) if isinstance(above, cst.FunctionDef)]
    return not name or name in facts.source.imports or any(facts.aliases.scopes.binds(scope, name) for scope in scopes)


def _called(scope: cst.FunctionDef | cst.Module) -> str:
    return scope.name.value if isinstance(scope, cst.FunctionDef) else "this file"


def _of_prepared(facts: Facts, node: cst.Attribute) -> bool:
    """Whether an attribute is one of a prepared model's parameter: of a loop's variable, or by its name."""
    groups = {facts.aliases.of(arg) for call in facts.calls("prepare") for arg in prepared_by(call)}
    if any(facts.aliases.of(one) in groups for one in prefixes(node.value)):
        return True  # model.fc.weight.grad
    wanted = {dotted(node.value)}
    for loop in _loops(facts, node):
        if wanted & {dotted(one) for one in walk(loop.target)}:
            if any(_goes_through(facts, one, groups) for one in walk(loop.iter)):
                return True
            wanted = names_in(facts.source, loop.iter)  # for group in ...: for param in group["params"]
    return False


def _loops(facts: Facts, node: cst.CSTNode) -> Iterator[cst.For | cst.CompFor]:
    """Yield the loops around a node, those of comprehensions too, innermost first."""
    for above in facts.source.above(node):
        if isinstance(above, cst.For):
            yield above
        elif isinstance(above, cst.BaseComp):
            inner = [one for one in walk(above.for_in) if isinstance(one, cst.CompFor)]
            yield from reversed(inner)


def _goes_through(facts: Facts, node: cst.CSTNode, groups: set[Key | None]) -> bool:
    """Whether a node is ``model.module.named_parameters`` or ``optimizer.param_groups`` of what is prepared."""
    if not isinstance(node, cst.Attribute):
        return False
    lists = "parameters" in node.attr.value or node.attr.value == "param_groups"
    return lists and any(facts.aliases.of(part) in groups for part in prefixes(node.value))


def _asks_for_gradient(source: Source, node: cst.Attribute) -> bool:
    """Whether a condition around an attribute asks if there is a gradient."""
    text = source.code(node)
    tests = [above.test for above in source.above(node) if isinstance(above, cst.If | cst.IfExp)]
    return any(f"{text} is" in source.code(test) or source.code(test) == text for test in tests)


def _edits(source: Source, node: cst.Attribute) -> bool:
    """Whether gradients are changed in place, and not emptied: ``param.grad.mul_(0.9)``."""
    method = source.parents[node]
    if not isinstance(method, cst.Attribute) or not isinstance(source.parents.get(method), cst.Call):
        return False
    return method.attr.value.endswith("_") and method.attr.value not in EMPTIES


def _trained(source: Source, call: cst.Call) -> list[str]:
    """Return the code of the optimizers that a call of ``step`` or ``scale_loss`` is for."""
    named = scaled_for(call) if dotted(call.func).endswith(".scale_loss") else [arg.value for arg in call.args[:1]]
    return [source.code(one) for one in named]


def _fresh(facts: Facts, node: cst.BaseExpression) -> bool:
    """Whether a function makes its own object of this name."""
    key, scope = facts.aliases.key(node), facts.source.scope(node)
    assigns = facts.source.assigns(dotted(node))
    return key is not None and any(facts.source.scope(a) is scope and isinstance(a.value, cst.Call) for a in assigns)


def _apart(facts: Facts, step: cst.Call) -> bool:
    """Whether a function steps an optimizer that it is given over gradients that no session scaled, with losses of its
    own: such a function never was under AMP.
    """
    source, scope, order = facts.source, facts.source.scope(step), facts.source.order
    assert isinstance(step.func, cst.Attribute)
    if not isinstance(scope, cst.FunctionDef) or dotted(step.func.value) not in parameters(scope):
        return False
    handed = [call for call in facts.every() if source.scope(call) is scope]
    before = [one for one in source.methods("backward") if source.scope(one) is scope and order[one] < order[step]]
    return not handed and bool(before) and not any(facts.is_handle(one.func.value) for one in before)  # type: ignore[attr-defined]  # a method


def _imported(facts: Facts, node: cst.CSTNode) -> bool:
    return any(isinstance(above, cst.Import | cst.ImportFrom) for above in facts.source.above(node)) or isinstance(
        facts.source.parents.get(node), cst.Attribute
    )


def _steps_others(facts: Facts, call: cst.Call) -> bool:
    """Whether the function steps optimizers that no session has, and these alone."""
    scope = facts.source.scope(call)
    if facts.in_scope(facts.calls("step", "scale_loss"), scope):
        later = [c for c in facts.source.methods("step") if facts.source.order[c] > facts.source.order[call]]
        later = [c for c in later if facts.source.scope(c) is scope and "sched" not in dotted(c.func)]
        return bool(later) and facts.aliases.of(later[0].func.value) not in facts.sessions  # type: ignore[attr-defined]  # a method
    return any(facts.source.scope(c) is scope and "opt" in dotted(c.func).lower() for c in facts.source.methods("step"))


def _places(facts: Facts, call: cst.Call, depth: int = 2) -> list[cst.Call]:
    """Return where a clipping happens: in its own function if that trains, else where that is called."""
    scope, order = facts.source.scope(call), facts.source.order
    if any(order[one] < order[call] for one in facts.in_scope(facts.calls("unscale"), scope)):
        return [call]  # a function that unscales and clips
    if facts.in_scope(facts.calls("step", "scale_loss"), scope) or not isinstance(scope, cst.FunctionDef) or not depth:
        return [call]
    callers = facts.aliases.reached.calls(scope)
    return [place for caller in callers for place in _places(facts, caller, depth - 1)]


def _is_unscaled(facts: Facts, place: cst.Call) -> bool:
    """Whether a place stands outside training, or behind ``amp.unscale`` of the loss before it."""
    scope, order = facts.source.scope(place), facts.source.order
    trains = facts.in_scope(facts.calls("step", "scale_loss"), scope)
    if not trains:
        return True
    done = [order[c] for c in facts.in_scope(facts.calls("unscale", "clip_grad_norm", "clip_grad_value"), scope)]
    scaled = [order[c] for c in facts.in_scope(facts.calls("scale_loss"), scope) if order[c] < order[place]]
    before = [one for one in done if one < order[place]]
    return bool(before) and (not scaled or max(before) > max(scaled))


def _near(facts: Facts, scope: cst.CSTNode, around: list[cst.CSTNode], depth: int = 4) -> bool:
    """Whether a function, one it calls, or one that calls it, enters a region."""
    if any(one is scope for one in around):
        return True
    if not depth:
        return False
    called = [f for n in walk(scope) if isinstance(n, cst.Call) for f in facts.aliases.reached.functions(n)]
    if any(one is f for one in around for f in called):
        return True
    callers = (
        [facts.source.scope(call) for call in facts.aliases.reached.calls(scope)]
        if isinstance(scope, cst.FunctionDef)
        else []
    )
    return any(_near(facts, caller, around, depth - 1) for caller in callers)
