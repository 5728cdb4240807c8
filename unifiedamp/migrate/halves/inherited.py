"""A class whose base class, in another file beside it, makes model, optimizer and scaler: it takes the session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import libcst as cst

from ..edits import Edits
from ..nodes import dotted, walk
from ..planning import check_result
from ..report import CannotMigrate, Finding, Migration
from ..source import Source
from ..together import joined, rewritten
from ..torch_amp import SCALERS
from ..training.aliases import Aliases
from ..training.reached import MODEL_WORDS
from .caller import CALLER, HALF

_HALF, _CALLER = f"{HALF}.py", f"{CALLER}.py"


@dataclass(frozen=True)
class Inherited:
    """What a base class brings.

    Attributes:
        owner: the class that inherits it.
        base: the base class's name.
        scaler: the attribute with the scaler, as ``scaler`` of ``self.scaler``.
        optimizers: the attributes with optimizers.
        models: the attributes with models.
    """

    owner: cst.ClassDef
    base: str
    scaler: str
    optimizers: Sequence[str]
    models: Sequence[str]


def migrate_inherited(path: str, content: bytes, source: Source, aliases: Aliases) -> Migration | None:
    """Migrate a class that inherits its scaler; return None where the file has none.

    The file is read with a caller that sets the attributes which the base class sets.
    """
    found = _inherited(source, aliases)
    if found is None:
        return None
    program = joined({_HALF: source, _CALLER: Source(_caller(found).encode())})
    try:
        after, findings, apis = rewritten(program)
    except CannotMigrate as error:
        return Migration(path, content, content, (), tuple(_here(source, found, error.findings)))
    if any(one.blocks for one in findings) or after[_HALF] == content:
        return Migration(path, content, content, (), tuple(_here(source, found, findings)))
    made_again = _made_again(source, found)
    if made_again:
        return Migration(path, content, content, (), tuple(sorted([*_here(source, found, findings), *made_again])))
    text = _prepared_again(Source(after[_HALF]), found, after[_CALLER].decode())
    check_result(path, content, text)
    own = [replace(one, path="") for one in findings if one.path == _HALF]
    note = _note(source, found, after[_CALLER].decode())
    return Migration(path, content, text, apis, tuple(sorted({*own, note})))


def _made_again(source: Source, found: Inherited) -> list[Finding]:
    """Return the refusals of lines that give the attributes new values, but for optimizers made of the models."""
    refused: list[Finding] = []
    for name in (*found.models, *found.optimizers):
        for line in source.assigns(f"self.{name}"):
            if name in found.models or not _is_made_of_model(source, line, found):
                what = f"self.{name} is made again here, and not prepared"
                write = "prepare it behind this line, where the session is made"
                refused.append(Finding(source.line(line), what, write, blocks=True))
    return refused


def _is_made_of_model(source: Source, line: cst.Assign, found: Inherited) -> bool:
    models = {f"self.{model}" for model in found.models}
    given = {dotted(one) for one in walk(line.value)}
    made = isinstance(line.value, cst.Call) and len(line.targets) == 1 and models <= given
    return made and source.inside(line, found.owner)


def _prepared_again(result: Source, found: Inherited, caller: str) -> bytes:
    """Return the text in which optimizers that methods make again are prepared behind the line that makes them."""
    edits = Edits()
    models = ", ".join(f"self.{model}" for model in found.models)
    for name in found.optimizers:
        for line in result.assigns(f"self.{name}"):
            objects = f"{models}, self.{name}"
            edits.after(result.statement(line), f"{objects} = {_session(caller)[1]}.prepare({objects})")
    return edits.apply(result.module).bytes if edits else result.text


def _session(caller: str) -> tuple[str, str]:
    """Return the line that makes the session, and what it makes."""
    made = next(line for line in caller.splitlines() if ".Amp(" in line).replace("given.", "self.", 1)
    return made, made.partition(" ")[0]


def _inherited(source: Source, aliases: Aliases) -> Inherited | None:
    scaled = source.scaled()
    owners = {aliases.scopes.class_of(source.scope(call)) for call in scaled}
    scalers = {dotted(call.func.value) for call in scaled if isinstance(call.func, cst.Attribute)}
    owner = owners.pop() if len(owners) == 1 else None
    scaler = scalers.pop() if len(scalers) == 1 else ""
    if owner is None or not _is_attribute(scaler) or source.calls(*SCALERS) or source.assigns(scaler):
        return None
    base = dotted(owner.bases[0].value) if len(owner.bases) == 1 else ""
    if base not in _from_beside(source):
        return None
    calls = [call for call in source.of(cst.Call) if source.inside(call, owner)]
    steps = [call for call in calls if dotted(call.func) == f"{scaler}.step" and call.args]
    optimizers = dict.fromkeys(dotted(call.args[0].value) for call in steps)
    called = dict.fromkeys(dotted(call.func) for call in calls if _is_attribute(dotted(call.func)))
    models = [name for name in called if name.rpartition(".")[2].rpartition("_")[2] in MODEL_WORDS]
    if not optimizers or not models or not all(map(_is_attribute, optimizers)):
        return None
    return Inherited(owner, base, scaler.removeprefix("self."), _last(*optimizers), _last(*models))


def _is_attribute(text: str) -> bool:
    return text.startswith("self.") and text.count(".") == 1


def _last(*texts: str) -> list[str]:
    return [text.rpartition(".")[2] for text in texts]


def _from_beside(source: Source) -> set[str]:
    """Return the names that a file imports from its own package."""
    found = set[str]()
    for node in source.of(cst.ImportFrom):
        if node.relative and not isinstance(node.names, cst.ImportStar):
            found |= {dotted(one.asname.name if one.asname else one.name) for one in node.names}
    return found


def _caller(found: Inherited) -> str:
    """Return the text of a program that sets the attributes, and calls the class's methods."""
    over = ", ".join(f"*given.{model}.parameters()" for model in found.models)
    name = found.owner.name.value
    lines = ["import torch", f"from {HALF} import {name}", f"given = {name}()"]
    lines += [f"given.{model} = torch.nn.Module()" for model in found.models]
    lines += [f"given.{optimizer} = torch.optim.SGD([{over}], lr=0.1)" for optimizer in found.optimizers]
    lines.append(f"given.{found.scaler} = torch.cuda.amp.GradScaler()")
    methods = [one.name.value for one in found.owner.body.body if isinstance(one, cst.FunctionDef)]
    lines += [f"given.{method}()" for method in methods if not method.startswith("__")]
    return "\n".join(lines) + "\n"


def _here(source: Source, found: Inherited, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings with the lines of the file; what is said of the caller stands at the class."""
    line = source.line(found.owner)
    own = {replace(one, path="") if one.path == _HALF else replace(one, path="", line=line)
           for one in findings if one.blocks or one.path == _HALF}  # fmt: skip
    return sorted(own)


def _note(source: Source, found: Inherited, caller: str) -> Finding:
    """Return what the base class must do from now on."""
    made, amp = _session(caller)
    objects = ", ".join(f"self.{name}" for name in (*found.models, *found.optimizers))
    what = f"{found.owner.name.value} takes a session, {amp}, in place of the scaler of {found.base}"
    write = (
        f'make it there: `{made}` and `{objects} = {amp}.prepare({objects})`, with policy="float32" where AMP is off'
    )
    return Finding(source.line(found.owner), what, write)
