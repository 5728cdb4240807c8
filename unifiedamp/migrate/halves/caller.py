"""The caller that a file with half of a program is read with: it makes what is missing, and calls the functions."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ..training.aliases import Aliases, Key
from .missing import Half, given, init_of, with_inits

HALF, CALLER = "unifiedamp_half", "unifiedamp_caller"
"""What the two files are called while they are read as one program."""
SCALER = "given_scaler"


def caller_of(aliases: Aliases, half: Half) -> str:
    """Return the text of a program that makes what is missing, and calls the functions."""
    models = _each(aliases, half, half.models) or ["given_unseen"]
    optimizers = _each(aliases, half, half.optimizers)
    over = ", ".join(f"*{model}.parameters()" for model in (*models, "given_others"))
    lines = ["import torch"]
    lines += [f"{name} = torch.nn.Module()" for name in (*models, "given_others")]
    lines += [f"{name} = torch.optim.SGD([{over}], lr=0.1)" for name in optimizers]
    if half.scalers:
        lines.append(f"{SCALER} = torch.cuda.amp.GradScaler()")
    else:
        objects = f"[{', '.join(models)}], [{', '.join(optimizers)}]"
        lines += ["from apex import amp", f"{objects} = amp.initialize({objects})"]
    header = "with torch.autocast('cuda'):" if half.scalers else "if True:"
    lines += [f"{header}\n    {name} = {models[0]}()" for name in _each(aliases, half, half.losses)]
    for entry in half.entries:
        lines += _call(aliases, half, entry)
    return "\n".join(lines) + "\n"


def _each(aliases: Aliases, half: Half, groups: set[Key | None]) -> list[str]:
    entries = with_inits(aliases, half.entries)
    names = [f"given_{name}" for entry in entries for name in given(aliases, entry, groups)]
    return list(dict.fromkeys(names))


def _call(aliases: Aliases, half: Half, entry: cst.FunctionDef) -> Iterator[str]:
    """Yield the lines that import and call a function; a method, on an object of its class."""
    owner, name = aliases.scopes.class_of(entry), entry.name.value
    imported = name if owner is None else owner.name.value
    yield f"from {HALF} import {imported}"
    called = imported if owner is None or name == "__init__" else f"given_{imported}.{name}"
    if called != imported:
        init = init_of(aliases, entry)
        yield f"given_{imported} = {imported}({_arguments(aliases, half, init) if init is not None else ''})"
    yield f"{called}({_arguments(aliases, half, entry)})"


def _arguments(aliases: Aliases, half: Half, function: cst.FunctionDef) -> str:
    brought = half.models | half.optimizers | half.losses
    arguments = [f"{name}={SCALER}" for name in given(aliases, function, half.scalers)]
    arguments += [f"{name}=given_{name}" for name in given(aliases, function, brought)]
    return ", ".join(arguments)
