"""Functions that train with a gluon Trainer, under MXNet's AMP that another file turns on: they take the session.

Who calls them prepares net and trainer; a trainer that such a function makes itself is prepared there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import libcst as cst

from .. import mxnet
from ..check.facts import Facts
from ..check.rejected import unfinished_windows, with_rejections
from ..checked import WRITE, old_lines
from ..edits import Edits
from ..mxnet.check import check
from ..mxnet.words import calls_of
from ..nodes import argument, dotted, parameters
from ..planning import check_result, plan
from ..report import CannotMigrate, Finding, Migration
from ..sessions import free_name
from ..source import Source
from ..together import handed, joined, with_imports
from ..training.aliases import Aliases
from .caller import CALLER, HALF
from .missing import entries_of

_HALF, _CALLER = f"{HALF}.py", f"{CALLER}.py"
_USES = ("scale_loss", "unscale", "init_trainer")
_BARE = ("step", "update", "allreduce_grads")
_TRAINER = "given_trainer"


def migrate_gluon_half(path: str, content: bytes, source: Source) -> Migration | None:
    """Migrate such functions; return None where the file has none, or all of a program.

    Args:
        path: what messages call the file.
        content: its bytes.
        source: the file.
    """
    if not calls_of(source, "scale_loss") or calls_of(source, "init"):
        return None
    uses = [call for name in _USES for call in calls_of(source, name)]
    if not all(_is_known(source, call) for call in uses):
        return None
    entries = entries_of(source, Aliases(source), uses)
    if not entries:
        return None
    half = Source(_left_to_callers(source, uses))
    try:
        after, findings = _rewritten(half, _caller(source, entries))
    except CannotMigrate as error:
        return Migration(path, content, content, (), tuple(_here(content, half, error.findings)))
    check_result(path, content, after)
    amp = free_name(source, "amp")
    notes = [_note(source, entry, amp) for entry in entries]
    return Migration(path, content, after, (mxnet.NAME,), tuple(sorted([*_here(content, half, findings), *notes])))


def _here(content: bytes, half: Source, findings: Sequence[Finding]) -> list[Finding]:
    """Return what was found in the half, with the lines of the file."""
    lines = old_lines(content, half.text)
    own = {replace(one, path="", line=lines.get(one.line, 1)) for one in findings if one.path == _HALF}
    return sorted(own)


def _note(source: Source, entry: cst.FunctionDef, amp: str) -> Finding:
    """Return what the callers of a function must do from now on."""
    makes = any(source.inside(call, entry) for call in source.calls("mxnet.gluon.Trainer"))
    prepare = "" if makes else f"prepare net and trainer with `net, trainer = {amp}.prepare(net, trainer)`, and "
    write = (
        f'where it is called: `{amp} = ua.Amp("mxnet", policy="mixed_float16")` in place of amp.init(), with '
        f'policy="float32" where AMP is off; {prepare}pass {amp}={amp}'
    )
    return Finding(source.line(entry), f"{entry.name.value} takes a session, {amp}, as a new argument", write)


# -- what is given ---------------------------------------------------------------------------------------------------


def _trainer(call: cst.Call) -> cst.BaseExpression | None:
    return argument(call, "optimizer_or_trainer", 1 if dotted(call.func).endswith("scale_loss") else 0)


def _is_known(source: Source, call: cst.Call) -> bool:
    """Whether the trainer of a call is a parameter, or made and initialized in the same function."""
    given = _trainer(call)
    name = dotted(given) if given is not None else ""
    if not name or "." in name:
        return False
    made = [one for one in calls_of(source, "init_trainer") if source.scope(one) is source.scope(call)]
    return _is_given(source, call, name) or any(dotted(_trainer(one) or call) == name for one in made)


def _is_given(source: Source, node: cst.CSTNode, name: str) -> bool:
    """Whether a name is a parameter of a function around a node, which gives it no other value."""
    around = [one for one in (source.scope(node), *source.above(node)) if isinstance(one, cst.FunctionDef)]
    owner = next((one for one in around if source.bound_in(name, one)), None)
    if owner is None or name not in parameters(owner):
        return False
    return all(source.scope(assign) is not owner for assign in source.assigns(name))


def _left_to_callers(source: Source, uses: Sequence[cst.Call]) -> bytes:
    """Return the text without ``init_trainer`` of trainers that callers make: these prepare them."""
    edits = Edits()
    for call in uses:
        given = _trainer(call)
        initializes = dotted(call.func).endswith("init_trainer") and source.is_alone(call)
        if initializes and given is not None and _is_given(source, call, dotted(given)):
            edits.statement(source.statement(call))
    return edits.apply(source.module).bytes


def _caller(source: Source, entries: Sequence[cst.FunctionDef]) -> Source:
    """Return a program that turns AMP on, and calls the functions."""
    lines = [
        "import mxnet", "from mxnet.contrib import amp", "amp.init()", "given_net = mxnet.gluon.nn.Dense(1)",
        f'{_TRAINER} = mxnet.gluon.Trainer(given_net.collect_params(), "sgd")', f"amp.init_trainer({_TRAINER})",
    ]  # fmt: skip
    for entry in entries:
        owner = next((one for one in source.above(entry) if isinstance(one, cst.ClassDef)), None)
        called = entry.name.value if owner is None else f"given_{owner.name.value}.{entry.name.value}"
        imported = entry.name.value if owner is None else owner.name.value
        lines.append(f"from {HALF} import {imported}")
        lines += [] if owner is None else [f"given_{imported} = {imported}()"]
        lines.append(f"{called}({_TRAINER})")
    return Source(("\n".join(lines) + "\n").encode())


# -- the session's calls ---------------------------------------------------------------------------------------------


def _rewritten(half: Source, caller: Source) -> tuple[bytes, list[Finding]]:
    program = joined({_HALF: half, _CALLER: caller})
    edits, findings = plan(mxnet, program)
    if any(found.blocks for found in findings):
        raise CannotMigrate(*findings)
    modules = with_imports(program, edits, [mxnet])
    texts = handed(program, {path: module.bytes for path, module in modules.items()})
    result, whole = Source(texts[_HALF]), joined({path: Source(text) for path, text in texts.items()})
    wrong = [*check(result, _HALF), *_beside(result)]
    wrong += [(whole.line(node), f"{what}; write {write}") for node, what, write in unfinished_windows(Facts(whole))]
    if wrong:
        lines = old_lines(half.text, texts[_HALF])
        raise CannotMigrate(*(Finding(lines.get(at, 1), what, WRITE, blocks=True, path=_HALF) for at, what in wrong))
    return with_rejections(whole)[_HALF], findings


def _beside(result: Source) -> Iterator[tuple[int, str]]:
    """Yield what functions that scale by the session do without it."""
    sessions = [call for call in result.methods("scale_loss") if len(call.args) == 2]
    for scope in {result.scope(call) for call in sessions}:
        trainers = {dotted(call.args[1].value) for call in sessions if result.scope(call) is scope}
        for call in [call for name in _BARE for call in result.methods(name)]:
            owner, _, name = dotted(call.func).rpartition(".")
            if owner in trainers and result.inside(call, scope):
                yield result.line(call), f"{owner}.{name}() is left bare: amp.step({owner}) must take its place"
        for call in result.calls("mxnet.autograd.record"):
            if result.inside(call, scope):
                yield result.line(call), "a region of autograd.record() beside the session's, which casts nothing"
