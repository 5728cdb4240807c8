"""Steps that scale their loss by an optimizer that other code makes.

The optimizer that ``amp.prepare`` returns takes the calls of Keras's ``LossScaleOptimizer``, so such a step works with
a session as it is. Here is checked that it does nothing with its optimizer in which the two differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from ..nodes import argument, dotted, parameters, walk
from ..source import Source
from ..work import EXCHANGED, Work
from .words import LOOP

_TAKEN = frozenset({*LOOP, "apply_gradients", "iterations", "learning_rate", "lr"})
_ASKS = ("isinstance", "hasattr", "getattr")
_GLOBAL = ("global_policy", "get_mixed_precision_policy")

Problem = tuple[cst.CSTNode, str, str]


@dataclass(frozen=True)
class Step:
    """A function that scales the loss by an optimizer which it is given.

    Attributes:
        function: the function.
        optimizer: the optimizer's code in it.
        problems: where it needs more than a prepared optimizer does.
    """

    function: cst.FunctionDef
    optimizer: str
    problems: Sequence[Problem]


def given_steps(source: Source) -> list[Step]:
    """Return the functions of a file that scale losses by an optimizer which the file does not make."""
    found: dict[tuple[cst.FunctionDef, str], Step] = {}
    for call in source.methods("get_scaled_loss"):
        function, optimizer = source.scope(call), dotted(call.func).rpartition(".")[0]
        if not isinstance(function, cst.FunctionDef) or not _calls(source, function, optimizer, "apply_gradients"):
            continue  # a part of a step
        if _is_given(source, function, optimizer):
            key = (function, optimizer)
            found[key] = found.get(key) or Step(function, optimizer, tuple(_problems(source, function, optimizer)))
    return list(found.values())


def model_steps(source: Source) -> list[Step]:
    """Return those that are methods of Keras models, by the optimizer that the model is compiled with."""
    steps = [step for step in given_steps(source) if step.optimizer == "self.optimizer"]
    return [step for step in steps if _is_model(source, step.function)]


def works(source: Source) -> list[cst.FunctionDef]:
    """Return the methods of Keras models that take their own steps, and may keep them."""
    return [step.function for step in model_steps(source) if not step.problems]


def keep(work: Work) -> bool:
    """Say of each such step that it works with a session, or why it does not; False where the file has others."""
    source, steps = work.source, given_steps(work.source)
    known = {step.function for step in steps}
    if not steps or any(source.scope(call) not in known for name in LOOP for call in source.methods(name)):
        return False
    block(work, steps)
    for step in steps if not work.blockers else ():
        what = f"{step.function.name.value} scales its loss by {step.optimizer}, and works with a prepared one as it is"
        write = (
            f'where that is made: `amp = {work.names.ua}.Amp("tensorflow", policy="mixed_float16")`, the model in '
            "`with amp.scope():`, and `model, optimizer = amp.prepare(model, optimizer)` in place of LossScaleOptimizer"
        )
        work.works(step.function, what, write)
    return True


def block(work: Work, steps: Sequence[Step]) -> None:
    """Block where steps need more than a prepared optimizer does."""
    for step in steps:
        for node, what, write in step.problems:
            work.block(node, what, write)


# -- whose optimizer it is -------------------------------------------------------------------------------------------


def _is_given(source: Source, function: cst.FunctionDef, optimizer: str, depth: int = 2) -> bool:
    """Whether an optimizer is a parameter, or an attribute that this file sets from one, or not at all."""
    root, _, rest = optimizer.partition(".")
    model, _, attribute = optimizer.rpartition(".")
    compiled = attribute == "optimizer" and any(dotted(c.func) == f"{model}.compile" for c in source.methods("compile"))
    if not root or compiled:
        return False
    if root == "self":
        return all(_from_parameter(source, assign) for assign in source.assigns(optimizer))
    around = [function, *(one for one in source.above(function) if isinstance(one, cst.FunctionDef))]
    owner = next((one for one in around if source.bound_in(root, one)), None)
    if owner is None:
        return False
    assigns = [assign for assign in source.assigns(root) if source.scope(assign) is owner]
    if root in parameters(owner):
        return not assigns and not (rest and source.assigns(optimizer))
    values = {dotted(assign.value) for assign in assigns}
    if rest or len(values) != 1 or not depth:
        return False
    (value,) = values
    return value.endswith("optimizer") and "." in value and _is_given(source, owner, value, depth - 1)


def _from_parameter(source: Source, assign: cst.Assign) -> bool:
    scope = source.scope(assign)
    return isinstance(scope, cst.FunctionDef) and dotted(assign.value) in parameters(scope)


def _is_model(source: Source, function: cst.FunctionDef) -> bool:
    owner = next((one for one in source.above(function) if isinstance(one, cst.ClassDef)), None)
    return owner is not None and any("Model" in source.meaning(base.value) for base in owner.bases)


# -- what it does with it --------------------------------------------------------------------------------------------


def _problems(source: Source, function: cst.FunctionDef, optimizer: str) -> Iterator[Problem]:
    yield from _compiles(source, function, optimizer)
    yield from _tests(source, function, optimizer)
    yield from _other_uses(source, function, optimizer)
    yield from _order(source, function, optimizer)
    for node in walk(function):
        if isinstance(node, cst.Call) and source.meaning(node.func).rpartition(".")[2] in EXCHANGED:
            yield node, f"{source.code(node.func)} exchanges gradients by itself", "use a tf.distribute strategy"


def _compiles(source: Source, function: cst.FunctionDef, optimizer: str) -> Iterator[Problem]:
    """A model's own ``compile`` hands Keras the optimizer that it is given."""
    owner = next((one for one in source.above(function) if isinstance(one, cst.ClassDef)), None)
    body = [] if owner is None else owner.body.body
    own = [one for one in body if isinstance(one, cst.FunctionDef) and one.name.value == "compile"]
    for method in own if optimizer == "self.optimizer" else ():
        calls = [call for call in source.methods("compile") if source.scope(call) is method]
        if not any(_passes_optimizer(call, method) for call in calls):
            what = f"{source.code(owner.name)}.compile" if owner is not None else "compile"
            yield method, f"{what} passes no optimizer to Keras's, which makes one", "`super().compile(optimizer)`"


def _passes_optimizer(call: cst.Call, method: cst.FunctionDef) -> bool:
    """Whether a call hands on the optimizer that a method is given: by its name, or with all that it is given."""
    given, params = argument(call, "optimizer", 0), method.params
    if given is not None:
        return dotted(given) in parameters(method)
    placed = [*params.posonly_params, *params.params][1:]
    stars = {"*": params.star_arg, "**": params.star_kwarg}
    taken = {star: one.name.value for star, one in stars.items() if isinstance(one, cst.Param)}
    starred = [arg.star for arg in call.args if arg.star and taken.get(arg.star) == dotted(arg.value)]
    return ("**" in starred and "optimizer" not in parameters(method)) or ("*" in starred and not placed)


def _tests(source: Source, function: cst.FunctionDef, optimizer: str) -> Iterator[Problem]:
    """The loss is scaled always, or where the optimizer, or a flag, says so: not where Keras's global policy does."""
    for call in _calls(source, function, optimizer, "get_scaled_loss", "get_unscaled_gradients"):
        for one in _between(source, call, function):
            test = one.test if isinstance(one, cst.If | cst.IfExp) else None
            calls = [] if test is None else [n for n in walk(test) if isinstance(n, cst.Call)]
            asked = [n for n in calls if dotted(n.func) not in _ASKS]
            if asked:
                what = f"the loss is scaled only if {source.code(asked[0])}, which a session does not change"
                yield one, what, f"ask `isinstance({optimizer}, tf.keras.mixed_precision.LossScaleOptimizer)`"
    for read in _policy_reads(source):
        what = f"{source.code(read)}, which a session sets in `with amp.scope():` alone"
        yield read, what, "ask the optimizer, or the model's dtype_policy"


def _policy_reads(source: Source) -> list[cst.CSTNode]:
    by_name = [source.parents[use] for name in _GLOBAL for use in source.uses(name)]
    methods = [call for name in _GLOBAL for call in source.methods(name)]
    return [*methods, *(node for node in by_name if isinstance(node, cst.Call))]


def _other_uses(source: Source, function: cst.FunctionDef, optimizer: str) -> Iterator[Problem]:
    owner = next((one for one in source.above(function) if isinstance(one, cst.ClassDef)), function)
    for node in walk(owner if optimizer.startswith("self.") else function):
        if not isinstance(node, cst.Attribute) or dotted(node.value) != optimizer or node.attr.value in _TAKEN:
            continue
        around = source.parents[node]
        if node.attr.value == "inner_optimizer" and isinstance(around, cst.Attribute) and around.attr.value in _TAKEN:
            continue
        what = f"{source.code(node)}, which the prepared optimizer may not have"
        yield node, what, f"use {', '.join(sorted(_TAKEN))} of it alone"


def _order(source: Source, function: cst.FunctionDef, optimizer: str) -> Iterator[Problem]:
    """The gradients that are unscaled are those which are applied next, each time."""
    unscales = _calls(source, function, optimizer, "get_unscaled_gradients")
    applies = _calls(source, function, optimizer, "apply_gradients")
    if len(unscales) != 1 or len(applies) != 1:
        found = f"{len(unscales)} calls of get_unscaled_gradients and {len(applies)} of apply_gradients"
        what = f"{found} in {function.name.value}, of {optimizer}"
        yield function, what, "the prepared optimizer takes one of each in a step: use amp.scale_loss and amp.step"
        return
    (unscale,), (apply,) = unscales, applies
    extra = [arg for arg in apply.args[1:] if arg.keyword is None or arg.keyword.value != "name"]
    if extra or not apply.args:
        what = f"{source.code(apply)} has arguments that the prepared optimizer does not take"
        yield apply, what, "write the step with amp.scale_loss and amp.step, which sum gradients over replicas"
    elif source.order[apply] < source.order[unscale] and not source.inside(unscale, apply):
        yield apply, f"{source.code(apply)} comes before the gradients are unscaled", "unscale them first"
    elif not _applied_each_time(source, function, unscale, apply) or not _flows(source, function, unscale, apply):
        what = f"{source.code(apply)} applies other gradients than those that {optimizer}.get_unscaled_gradients made"
        yield apply, what, "let the session accumulate: ua.Amp(accumulate_steps=...)"


def _applied_each_time(source: Source, function: cst.FunctionDef, unscale: cst.Call, apply: cst.Call) -> bool:
    kinds = cst.For | cst.While | cst.If | cst.Try
    around = [[one for one in _between(source, call, function) if isinstance(one, kinds)] for call in (unscale, apply)]
    loops = [[one for one in each if isinstance(one, cst.For | cst.While)] for each in around]
    return loops[0] == loops[1] and all(one in around[0] for one in around[1])


def _flows(source: Source, function: cst.FunctionDef, unscale: cst.Call, apply: cst.Call) -> bool:
    """Whether what is applied comes from the unscaled gradients, through variables."""
    if source.inside(unscale, apply):
        return True
    names: set[str] = set()
    for assign in source.assigned_in(function):
        if source.order[assign] > source.order[apply]:
            break
        values = set(walk(assign.value))
        if unscale in values or names & {one.value for one in values if isinstance(one, cst.Name)}:
            target = assign.targets[0].target
            first = target.elements[0].value if isinstance(target, cst.Tuple) and target.elements else target
            names.add(dotted(first))
    given = argument(apply, "grads_and_vars", 0)
    zipped = given if given is None else next((n for n in walk(given) if _is_zip(n)), given)
    taken = zipped.args[0].value if isinstance(zipped, cst.Call) and zipped.args else zipped
    return taken is not None and bool(names & {n.value for n in walk(taken) if isinstance(n, cst.Name)})


def _is_zip(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and dotted(node.func) == "zip"


def _calls(source: Source, function: cst.FunctionDef, optimizer: str, *names: str) -> list[cst.Call]:
    calls = [call for name in names for call in source.methods(name)]
    return [c for c in calls if source.scope(c) is function and dotted(c.func).rpartition(".")[0] == optimizer]


def _between(source: Source, node: cst.CSTNode, function: cst.FunctionDef) -> Iterator[cst.CSTNode]:
    """Yield what encloses a node in a function, innermost first."""
    for one in source.above(node):
        if one is function:
            return
        yield one
