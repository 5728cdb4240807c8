"""Where mixed precision is turned on: the policy, or the graph rewrite, and the session that takes its place."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ..flags import WHEN
from ..nodes import argument, dotted, literal
from ..report import CannotMigrate
from ..sessions import session_line
from ..source import Statement
from ..work import Work
from .chosen import choice_of, drop_unused, makes_policy, value_of
from .flags import is_float32, puts_back
from .policy_in_force import is_in_force
from .repeated import repeats
from .scales import dynamic_scale, experimental_scale, quoted, wrapper_scale
from .words import POLICY, REWRITE, VALUE, WRAPPER, calls_of

REWRITES = '{"tensorflow": {"mode": "graph_rewrite"}}'


class Start:
    """The one call that turns mixed precision on.

    Attributes:
        call: that call.
        rewrites: whether it is the graph rewrite's.
        makes_policy: whether models must be made after it, in the session's scope, to have its policy.
        settings: the code of the session's arguments; :func:`make_session` gives it.

    Raises:
        CannotMigrate: there is none in the file; several block.
    """

    def __init__(self, work: Work) -> None:
        policies, rewrites = calls_of(work.source, POLICY), calls_of(work.source, REWRITE)
        mixed = [one for one in policies if not is_float32(work.source, one) and not puts_back(work.source, one)]
        if len(mixed) == len(policies) > 1:
            for call in repeats(work.source, mixed):
                work.edits.statement(work.source.statement(call))
                mixed.remove(call)
        starts = (mixed or policies[:1]) + rewrites
        if not starts:
            raise _no_start(work)
        if len(starts) > 1:
            work.block(starts[1], *_several(work, starts, rewrites))
        self.call, self.rewrites = starts[0], bool(rewrites)
        given = self.call.args[0].value if self.call.args else None
        self.makes_policy = not self.rewrites and not (given is not None and is_in_force(work.source, given))
        self.settings: dict[str, str | None] = {}


def _several(work: Work, starts: Sequence[cst.Call], rewrites: Sequence[cst.Call]) -> tuple[str, str]:
    """Return why several calls that turn mixed precision on cannot become one session, and what to write."""
    source, lines = work.source, ", ".join(str(work.source.line(call)) for call in starts)
    times = f"{len(starts)} times (lines {lines})"
    if len(rewrites) == len(starts):
        what = f"the graph rewrite, which is one for the whole process, is turned on {times}"
        return what, "make one session with mode=graph_rewrite, and prepare each model with its optimizer"
    scopes = {source.scope(call) for call in starts}
    same = len({source.code(call.args[0].value) for call in starts if call.args}) == 1
    if same and len(scopes) == len(starts) and source.module not in scopes:
        what = f"one policy is set in {len(starts)} functions (lines {lines})"
        return what, "make a session in each function that trains another model, or one session before them"
    return f"the policy is set {times}", 'make a session for each policy: `ua.Amp("tensorflow", policy=...)`'


def make_session(work: Work, start: Start) -> None:
    """Replace the call by the session, and take the optimizers out of their wrappers.

    Raises:
        CannotMigrate: the policy or a scale is not understood.
    """
    wrappers = _unwrap(work, start)
    policy, scale = _rewrite(work, start.call) if start.rewrites else _policy(work, start.call)
    scale = wrappers if wrappers is not None else scale
    if scale is None and policy == '"mixed_float16"':
        scale = dynamic_scale(work.names)  # what Keras wraps an optimizer in by itself
    chosen, scale = _behind_flag(work, start.call, policy, scale)
    policy = chosen if start.rewrites or start.makes_policy else policy  # the one in force stays without the flag too
    start.settings = {
        "policy": policy, "loss_scale": scale, "backend_options": REWRITES if start.rewrites else None
    }  # fmt: skip
    line = session_line(work.names, work.names.amp, "tensorflow", **start.settings)
    if start.rewrites and work.source.assignment(start.call) is None:
        work.edits.before(work.source.statement(start.call), line)
        work.edits.expression(start.call, work.source.code(start.call.args[0].value))
        return
    again = _renamed(work, start.call) if start.rewrites else []
    statement = work.source.statement(start.call)
    around = _try_around(work, statement)
    if around is None:
        work.edits.statement(statement, line, *again)
    else:  # what fails there is not to leave the file without a session
        work.edits.statement(statement, *again)
        work.edits.after(around, line)


def _try_around(work: Work, statement: Statement) -> Statement | None:
    """Return the outermost ``try`` around a statement in the same function, where nothing else decides."""
    found: Statement | None = None
    for one in work.source.above(statement):
        if isinstance(one, cst.Try):
            found = one
        elif not isinstance(one, cst.IndentedBlock | cst.Finally):
            break
    return found


def _behind_flag(work: Work, call: cst.Call, policy: str, scale: str | None) -> tuple[str, str | None]:
    """Return policy and loss scale as a flag chooses them; without it float32, and nothing is scaled."""
    when = argument(call, WHEN)
    chosen = choice_of(work.source, call)
    if when is None and chosen is None:
        return policy, scale
    flag = work.source.code(when) if when is not None else chosen.flag if chosen is not None else ""
    if when is not None and not isinstance(when, cst.IfExp | cst.Lambda | cst.NamedExpr):
        flag = flag[1:-1]  # the brackets of flags.py
    if when is not None and chosen is not None and chosen.flag != flag:
        raise work.stop(call, f"the policy depends on {chosen.flag}, and on {flag}", "let one flag decide")
    return f'{policy} if {flag} else "float32"', None if scale is None else f'{scale} if {flag} else "none"'


def _no_start(work: Work) -> CannotMigrate:
    calls = [*calls_of(work.source, WRAPPER), *work.source.methods("get_scaled_loss")]
    return work.stop(calls[0], "loss scaling in a file that sets no policy",
                     "make the session where the policy is set, and hand it to this code")  # fmt: skip


# -- what it was given -----------------------------------------------------------------------------------------------


def _policy(work: Work, call: cst.Call) -> tuple[str, str | None]:
    """Return the code of a policy, and of the loss scale in it."""
    source = work.source
    plain = [arg for arg in call.args if arg.keyword is None or arg.keyword.value != WHEN]
    given = plain[0].value if len(plain) == 1 else None
    if given is None or not source.is_alone(call):
        raise work.stop(call, source.code(call), '`amp = ua.Amp("tensorflow", policy=...)`')
    if is_in_force(source, given):
        return source.code(given), None
    chosen = choice_of(source, call)
    if chosen is not None:
        drop_unused(work, given, chosen.made)
        return chosen.policy, None
    value = value_of(source, given)
    if isinstance(value, cst.Call) and VALUE.fullmatch(source.meaning(value.func)):
        named = argument(value, "name", 0)
        scale = argument(value, "loss_scale", 1)
        if isinstance(literal(named), str) or (named is not None and dotted(named)):
            drop_unused(work, given, ())
            return quoted(source, named), None if scale is None else experimental_scale(source, work.names, scale)
    if not isinstance(literal(value), str) and value is not given:
        value = given
    if isinstance(literal(value), str) or (dotted(given) and not makes_policy(source, given)):
        return quoted(source, value), None
    raise work.stop(call, f"the policy {source.code(given)}", 'name it: policy="mixed_float16"')


def _rewrite(work: Work, call: cst.Call) -> tuple[str, str]:
    """Return the code of the graph rewrite's policy and loss scale."""
    inner, scale = argument(call, "opt", 0), argument(call, "loss_scale", 1)
    if inner is None or work.source.simple(call) is None:
        raise work.stop(call, work.source.code(call), "assign the optimizer to a name and wrap it after that")
    return '"mixed_float16"', experimental_scale(work.source, work.names, scale)


def _renamed(work: Work, call: cst.Call) -> list[str]:
    """Return the line that keeps the name which the rewritten optimizer had, where it had a different one."""
    inner, simple = argument(call, "opt", 0), work.source.simple(call)
    if inner is None or not isinstance(simple, cst.Assign):
        return []
    name = dotted(simple.targets[0].target)
    return [] if name == dotted(inner) else [f"{name} = {work.source.code(inner)}"]


# -- wrapped optimizers ----------------------------------------------------------------------------------------------


def _unwrap(work: Work, start: Start) -> str | None:
    """Take the optimizers out of their LossScaleOptimizers; return the scale these asked for."""
    scales = set()
    for call in calls_of(work.source, WRAPPER):
        inner = argument(call, "inner_optimizer", 0) or argument(call, "optimizer", 0) or argument(call, "opt", 0)
        if inner is None:
            work.block(call, work.source.code(call), "give ua.Amp its loss_scale")
            continue
        scales.add(wrapper_scale(work.source, work.names, call))
        _replace(work, call, inner)
    if len(scales) > 1:
        work.block(start.call, "LossScaleOptimizers with different scales", "a session has one scale")
    return next(iter(scales), None)


def _replace(work: Work, call: cst.Call, inner: cst.BaseExpression) -> None:
    assign = work.source.assignment(call)
    if assign is not None and dotted(assign.targets[0].target) == dotted(inner):
        work.edits.statement(work.source.statement(call))
    else:
        work.edits.expression(call, work.source.code(inner))
