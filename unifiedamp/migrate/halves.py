"""Half of a program: functions that train with a scaler, or with Apex, that other files make.

The file is read together with a caller that makes model, optimizer and scaler and hands them over. What becomes of the
caller is thrown away: the file's functions take the session that their real callers make.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import libcst as cst

from .apex.settings import IN_LOOPS, calls_of
from .nodes import argument, dotted
from .planning import check_result
from .report import CannotMigrate, Finding, Migration
from .source import Source
from .together import joined, rewritten
from .torch_amp import SCALERS
from .torch_amp.prepare import model_groups
from .training.aliases import Aliases, Key

_HALF, _CALLER = "unifiedamp_half", "unifiedamp_caller"
_MODELS = ("model", "net", "network", "module")
_SCALER = "given_scaler"


@dataclass(frozen=True)
class Half:
    """What other files must hand over.

    Attributes:
        entries: the functions that other files call.
        scalers: the groups of scalers; none for Apex, whose module the functions import.
        optimizers: the groups of optimizers that losses are scaled for.
        models: the groups of models.
    """

    entries: Sequence[cst.FunctionDef]
    scalers: set[Key | None]
    optimizers: set[Key | None]
    models: set[Key | None]


def migrate_half(path: str, content: bytes, source: Source) -> Migration | None:
    """Migrate functions that train for other files; return None where the file has none, or all of a program.

    Args:
        path: what messages call the file.
        content: its bytes.
        source: the file.
    """
    aliases = Aliases(source)
    half = _with_scaler(source, aliases) or _with_apex(source, aliases)
    if half is None:
        return None
    caller = Source(_caller(aliases, half).encode())
    program = joined({f"{_HALF}.py": source, f"{_CALLER}.py": caller})
    try:
        after, findings, apis = rewritten(program)
    except CannotMigrate as error:
        return Migration(path, content, content, (), tuple(_here(source, half, error.findings)))
    if any(found.blocks for found in findings) or after[f"{_HALF}.py"] == content:
        return Migration(path, content, content, (), tuple(_here(source, half, findings)))
    check_result(path, content, after[f"{_HALF}.py"])
    own = [replace(found, path="") for found in findings if found.path == f"{_HALF}.py"]
    notes = [_note(source, half, entry, after[f"{_CALLER}.py"].decode()) for entry in half.entries]
    return Migration(path, content, after[f"{_HALF}.py"], apis, tuple(sorted({*own, *notes})))


def _here(source: Source, half: Half, findings: Iterable[Finding]) -> list[Finding]:
    """Return findings with the lines of the file; what is said of the caller stands at the function it calls."""
    line = source.line(half.entries[0])
    own = {replace(found, path="") if found.path == f"{_HALF}.py" else replace(found, path="", line=line)
           for found in findings if found.blocks or found.path == f"{_HALF}.py"}  # fmt: skip
    return sorted(own)


def _note(source: Source, half: Half, entry: cst.FunctionDef, caller: str) -> Finding:
    """Return what the callers of a function must do from now on."""
    name = _called(source, entry)
    made = next(line for line in caller.splitlines() if ".Amp(" in line)
    amp = made.partition(" ")[0]
    instead = f"{name} takes a session, {amp}, " + ("in place of the scaler" if half.scalers else "as a new argument")
    write = (
        f"where it is called: `{made}`, with policy=\"float32\" where AMP is off; prepare model and optimizer "
        f"with `{amp}.prepare(model, optimizer)`, and pass {amp}"
    )
    return Finding(source.line(entry), instead, write)


def _called(source: Source, function: cst.FunctionDef) -> str:
    owner = next((one for one in source.above(function) if isinstance(one, cst.ClassDef)), None)
    if owner is None:
        return function.name.value
    return owner.name.value if function.name.value == "__init__" else f"{owner.name.value}.{function.name.value}"


# -- what is missing --------------------------------------------------------------------------------------------------


def _with_scaler(source: Source, aliases: Aliases) -> Half | None:
    """Return what a file lacks whose functions have a parameter for a ``GradScaler``."""
    scalers = {aliases.of(_receiver(call)) for call in source.methods("scale") if _goes_backward(source, call)}
    if not scalers or None in scalers or source.calls(*SCALERS):
        return None
    steps = [call for call in source.methods("step") if aliases.of(_receiver(call)) in scalers]
    optimizers = {aliases.of(call.args[0].value) for call in steps if len(call.args) == 1}
    entries = [f for f in _outermost(source) if _given(aliases, f, scalers) and not aliases.calls(f)]
    return _half(source, aliases, entries, scalers, optimizers)


def _with_apex(source: Source, aliases: Aliases) -> Half | None:
    """Return what a file lacks that scales losses with Apex, which another file initializes."""
    uses = calls_of(source, *IN_LOOPS)
    if not uses or calls_of(source, "initialize") or not calls_of(source, "scale_loss"):
        return None
    entries: dict[cst.FunctionDef, None] = {}
    seen: set[cst.CSTNode] = set()
    waiting: list[cst.CSTNode] = [*uses]
    while waiting:
        function = _around(source, waiting.pop())
        if function is None or _overrides(aliases, function):
            return None
        if function in seen:
            continue
        seen.add(function)
        callers = aliases.calls(function)
        waiting += callers
        if not callers:
            entries[function] = None
    named = [argument(call, "optimizers", 1) for call in calls_of(source, "scale_loss")]
    optimizers = {aliases.of(one) for node in named if node is not None for one in _listed(node)}
    half = _half(source, aliases, sorted(entries, key=source.order.__getitem__), set(), optimizers)
    return half if half is not None and half.models else None


def _half(
    source: Source,
    aliases: Aliases,
    entries: Sequence[cst.FunctionDef],
    scalers: set[Key | None],
    optimizers: set[Key | None],
) -> Half | None:
    """Return what is missing if parameters of ``entries`` bring it all."""
    if not entries or not optimizers or None in optimizers:
        return None
    given = {aliases.group((entry, name)) for entry in entries for name in _names(entry)}
    if not scalers <= given or not optimizers <= given:
        return None
    models = {group for group in model_groups(source, aliases) if group in given}
    named = {(entry, name) for entry in entries for name in _names(entry) if name.rpartition("_")[2] in _MODELS}
    models |= {aliases.group(key) for key in named}
    return Half(entries, scalers, optimizers, models - scalers - optimizers)


def _outermost(source: Source) -> Iterator[cst.FunctionDef]:
    """Yield the functions that other files can call: those of the file and of its classes."""
    for function in source.of(cst.FunctionDef):
        if not any(isinstance(above, cst.FunctionDef) for above in source.above(function)):
            yield function


def _around(source: Source, node: cst.CSTNode) -> cst.FunctionDef | None:
    found = [above for above in source.above(node) if isinstance(above, cst.FunctionDef)]
    return found[-1] if found else None


def _overrides(aliases: Aliases, function: cst.FunctionDef) -> bool:
    """Whether a method may be called by a base class, which passes no new argument."""
    owner = aliases.class_of(function)
    return owner is not None and any(dotted(base.value) != "object" for base in owner.bases)


def _given(aliases: Aliases, function: cst.FunctionDef, groups: set[Key | None]) -> list[str]:
    """Return the parameters of a function that stand for objects of these groups."""
    return [name for name in _names(function) if aliases.group((function, name)) in groups]


def _names(function: cst.FunctionDef) -> list[str]:
    return [one.name.value for one in (*function.params.params, *function.params.kwonly_params)]


def _goes_backward(source: Source, call: cst.Call) -> bool:
    around = source.parents[call]
    return isinstance(around, cst.Attribute) and around.attr.value == "backward"


def _receiver(call: cst.Call) -> cst.BaseExpression:
    assert isinstance(call.func, cst.Attribute)
    return call.func.value


def _listed(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    return [one.value for one in node.elements] if isinstance(node, cst.List | cst.Tuple) else [node]


# -- the caller -------------------------------------------------------------------------------------------------------


def _caller(aliases: Aliases, half: Half) -> str:
    """Return the text of a program that makes what is missing, and calls the functions."""
    models = _each(aliases, half, half.models) or ["given_unseen"]
    optimizers = _each(aliases, half, half.optimizers)
    over = ", ".join(f"*{model}.parameters()" for model in (*models, "given_others"))
    lines = ["import torch"]
    lines += [f"{name} = torch.nn.Module()" for name in (*models, "given_others")]
    lines += [f"{name} = torch.optim.SGD([{over}], lr=0.1)" for name in optimizers]
    if half.scalers:
        lines.append(f"{_SCALER} = torch.cuda.amp.GradScaler()")
    else:
        objects = f"[{', '.join(models)}], [{', '.join(optimizers)}]"
        lines += ["from apex import amp", f"{objects} = amp.initialize({objects})"]
    for entry in half.entries:
        lines += _call(aliases, half, entry)
    return "\n".join(lines) + "\n"


def _each(aliases: Aliases, half: Half, groups: set[Key | None]) -> list[str]:
    names = [f"given_{name}" for entry in half.entries for name in _given(aliases, entry, groups)]
    return list(dict.fromkeys(names))


def _call(aliases: Aliases, half: Half, entry: cst.FunctionDef) -> Iterator[str]:
    """Yield the lines that import and call a function; a method, on an object of its class."""
    arguments = [f"{name}={_SCALER}" for name in _given(aliases, entry, half.scalers)]
    arguments += [f"{name}=given_{name}" for name in _given(aliases, entry, half.models | half.optimizers)]
    owner, name = aliases.class_of(entry), entry.name.value
    imported = name if owner is None else owner.name.value
    yield f"from {_HALF} import {imported}"
    called = imported if owner is None or name == "__init__" else f"given_{imported}.{name}"
    if called != imported:
        yield f"given_{imported} = {imported}()"
    yield f"given_result = {called}({', '.join(arguments)})" if called == imported else f"{called}({', '.join(arguments)})"
