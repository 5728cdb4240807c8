"""What a session cannot take over from a torch script: hand-written scaling, other exchanges of gradients, remade
optimizers, steps in other files, and models for inference alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ..nodes import dotted
from ..source import Source
from ..torch_amp.prepare import model_groups
from ..training.aliases import Key
from ..training.values import peeled
from ..work import EXCHANGED, LARC, SWA
from .facts import Facts, prepared_by

Problem = tuple[cst.CSTNode, str, str]
_SCALE = re.compile(r"(loss|grad)_?scale(r)?\b", re.IGNORECASE)
_WEIGHED = re.compile(r"_?(?P<part>[a-z]+)_loss_scale$")
_OF_AMP = {
    "init", "initial", "fp", "amp", "dynamic", "static", "current", "curr", "cur",
    "inv", "max", "min", "new", "old",
}  # fmt: skip
_METHOD = re.compile(r"(?<!first)(?<!second)_step$")
_STEP = re.compile(r"optim\w*_step$|^step_optim", re.IGNORECASE)
_TORCH = "torch."


def scaled_by_hand(facts: Facts) -> Iterator[Problem]:
    """No loss is multiplied by a scale of the script's beside the session's."""
    for node in facts.source.nodes:
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply):
            sides: tuple[cst.BaseExpression, ...] = (node.left, node.right)
        elif isinstance(node, cst.AugAssign) and isinstance(node.operator, cst.MultiplyAssign):
            sides = (node.target, node.value)
        else:
            continue
        scales = [side for side in sides if _SCALE.search(dotted(side).rpartition(".")[2])]
        scales = [side for side in scales if not _is_weight(facts.source, side)]
        losses = [side for side in sides if side not in scales and "loss" in dotted(side)]
        if scales and losses:
            code = facts.source.code(node).strip()
            yield node, f"{code} scales the loss by hand", "the session's `loss_scale=`, and drop this scaling"


def exchanged(facts: Facts) -> Iterator[Problem]:
    """The session sees when gradients are exchanged: Horovod's wrappers do it in the optimizer's own step."""
    for node in facts.source.of(cst.Assign):
        for value in peeled(node.value):
            name = facts.source.meaning(value.func) if isinstance(value, cst.Call) else ""
            if name.rpartition(".")[2] not in EXCHANGED or name.startswith(_TORCH):
                continue
            if any(facts.aliases.of(target.target) in facts.optimizers for target in node.targets):
                what = f"{name} exchanges gradients by itself, and the session would judge them before that"
                yield node, what, "DistributedDataParallel, which the session knows"


def wrapped(facts: Facts) -> Iterator[Problem]:
    """What is prepared is an optimizer, and no wrapper around one, in which torch's hooks do not run."""
    for call in facts.source.calls(*LARC, *SWA):
        assign = facts.source.assignment(call)
        if assign is None or not any(facts.aliases.of(one.target) in facts.optimizers for one in assign.targets):
            continue
        name = dotted(call.func)
        write = "the optimizer alone, or keep the old calls with `--to compat`, which takes LARC"
        if facts.source.meaning(call.func) in SWA:
            write = "the optimizer alone, and `ema = amp.ema(model)` or torch.optim.swa_utils for the average"
        yield call, f"{name}(...) is a wrapper around an optimizer, which amp.prepare refuses", write


def remade(facts: Facts) -> Iterator[Problem]:
    """An optimizer that is prepared is not made anew elsewhere without being prepared there."""
    source = facts.source
    prepared: dict[Key | None, set[cst.CSTNode]] = {}
    for call in facts.calls("prepare"):
        for one in prepared_by(call):
            prepared.setdefault(facts.aliases.key(one), set()).add(source.scope(call))
    for node in source.of(cst.Assign):
        made = any(isinstance(value, cst.Call) for value in peeled(node.value))
        for target in node.targets if made else ():
            scopes = prepared.get(facts.aliases.key(target.target), set())
            own = source.scope(node)
            if facts.aliases.of(target.target) not in facts.optimizers or not scopes or own in scopes:
                continue
            others = [one for one in source.assigns(dotted(target.target)) if source.scope(one) in scopes]
            if any(_makes(facts, one) for one in others):
                code = source.code(target.target).strip()
                write = f"`{facts.source.code(facts.made[0])}.prepare(model, {code})` behind it"
                yield node, f"{code} is made again here, and not prepared", write


def remade_here(facts: Facts) -> Iterator[Problem]:
    """An optimizer that a function prepares, and makes anew behind that, is prepared again."""
    source, order = facts.source, facts.source.order
    calls = [(call, facts.aliases.key(one)) for call in facts.calls("prepare") for one in prepared_by(call)]
    for node, target in _made_alone(source):
        key = facts.aliases.key(target)
        mine = [call for call, its in calls if its == key and source.scope(call) is source.scope(node)]
        mine = [call for call in mine if not source.exclusive(call, node)]
        if facts.aliases.of(target) in facts.optimizers and mine and all(order[call] < order[node] for call in mine):
            code = source.code(target).strip()
            write = f"`{source.code(facts.made[0])}.prepare(model, {code})` behind it"
            yield node, f"{code} is made again here, and not prepared", write


def _made_alone(source: Source) -> Iterator[tuple[cst.Assign, cst.BaseExpression]]:
    """Yield the targets that get what a call makes, also in ``optimizer, scheduler = SGD(...), None``; no
    wrapper, as ``optimizer = Lookahead(optimizer)``.
    """
    for node in source.of(cst.Assign):
        for one in node.targets:
            pairs: list[tuple[cst.BaseExpression, cst.BaseExpression]] = [(one.target, node.value)]
            if isinstance(one.target, cst.Tuple) and isinstance(node.value, cst.Tuple):
                both = zip(one.target.elements, node.value.elements, strict=False)
                pairs = [(target.value, value.value) for target, value in both]
            for target, value in pairs:
                made = [each for each in peeled(value) if isinstance(each, cst.Call)]
                if any(all(dotted(arg.value) != dotted(target) for arg in each.args) for each in made):
                    yield node, target


def for_inference(facts: Facts) -> Iterator[Problem]:
    """A model that is prepared computes in a region somewhere: Apex patched functions for good."""
    if facts.calls("autocast", "inference", "scale_loss"):
        return
    models = model_groups(facts.source, facts.aliases)
    for call in facts.calls("prepare"):
        if len(call.args) == 1 or all(facts.aliases.of(arg.value) in models for arg in call.args):
            code = facts.source.code(call.args[0].value)
            yield call, f"nothing here computes with {code} in a region", "`with amp.inference():` around its calls"


def stepped_elsewhere(facts: Facts) -> Iterator[Problem]:
    """Nothing else steps a prepared optimizer: no function of another file, as ``xm.optimizer_step(optimizer)`` of
    torch_xla, and no other method of it, as Bagua's ``optimizer.fuse_step()``.
    """
    for call in facts.source.of(cst.Call):
        name = dotted(call.func).rpartition(".")[2]
        owner = call.func.value if isinstance(call.func, cst.Attribute) else None
        if owner is not None and _METHOD.search(name) and facts.aliases.of(owner) in facts.optimizers:
            what = f"{facts.source.code(call)} steps {facts.source.code(owner)} past the session"
            yield call, what, f"`{facts.source.code(facts.made[0])}.step({facts.source.code(owner)})`"
            continue
        if not _STEP.search(name) or facts.aliases.reached.functions(call):
            continue
        for arg in call.args:
            if facts.aliases.of(arg.value) in facts.optimizers:
                what = f"{facts.source.code(call)} steps {facts.source.code(arg.value)} in code that is not here"
                yield call, what, f"`{facts.source.code(facts.made[0])}.step({facts.source.code(arg.value)})`"


def of_no_model(facts: Facts) -> Iterator[Problem]:
    """The parameters of a prepared optimizer are those of a model: ``prepare`` refuses an optimizer of bare tensors."""
    source = facts.source
    groups = {facts.aliases.of(one) for call in facts.calls("prepare") for one in prepared_by(call)}
    for node in source.of(cst.Assign):
        given = node.value.args[0].value if isinstance(node.value, cst.Call) and node.value.args else None
        if not isinstance(given, cst.List | cst.Tuple) or not given.elements:
            continue
        if not any(facts.aliases.of(target.target) in groups & set(facts.optimizers) for target in node.targets):
            continue
        tensors = [one.value for one in given.elements if dotted(one.value) and dotted(one.value) != "self"]
        owned = [one for one in tensors if isinstance(one, cst.Attribute) and facts.aliases.of(one.value) in groups]
        if len(tensors) == len(given.elements) and not owned:
            what = f"{source.code(node.targets[0].target).strip()} trains {source.code(given)}, of no prepared model"
            yield node, what, "these parameters into a torch.nn.Module, and prepare it too"


def _is_weight(source: Source, scale: cst.BaseExpression) -> bool:
    """Whether a scale weighs one of several losses, as ``value_loss_scale``: gradients are not divided by it again."""
    named = _WEIGHED.search(dotted(scale).rpartition(".")[2])
    if named is None or named["part"] in _OF_AMP:
        return False
    code = source.code(scale).strip()
    divided = [one.right for one in source.of(cst.BinaryOperation) if isinstance(one.operator, cst.Divide)]
    divided += [one.value for one in source.of(cst.AugAssign) if isinstance(one.operator, cst.DivideAssign)]
    divided += [arg.value for method in ("div_", "div") for call in source.methods(method) for arg in call.args[:1]]
    return all(source.code(one).strip() != code for one in divided)


def _makes(facts: Facts, assign: cst.Assign) -> bool:
    """Whether an assignment makes an object, and does not prepare one."""
    calls = [one for one in peeled(assign.value) if isinstance(one, cst.Call)]
    return any(one not in facts.calls("prepare") for one in calls)


RULES = (
    scaled_by_hand, exchanged, wrapped, remade, remade_here, for_inference, stepped_elsewhere, of_no_model,
)  # fmt: skip
