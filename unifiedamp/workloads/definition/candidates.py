"""Which object of a file is the workload, and whether it has the parts of one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ...errors import ConfigError, nearest
from .protocol import OPTIONAL, PAIRS, REQUIRED

USUAL = "workload"
"""The name that is taken where a file has several."""


def find(module: ModuleType, name: str | None, where: str) -> Any:
    """Return the class, function, object or module that is the workload.

    Args:
        module: the user's file.
        name: what it is called there; None takes the only one, or the one called ``workload``.
        where: the file, for messages.

    Raises:
        ConfigError: there is none of that name, no workload at all, or several.
    """
    if name is not None:
        if not hasattr(module, name):
            own = [key for key in vars(module) if not key.startswith("_")]
            raise ConfigError(f"{where} has no {name!r}{nearest(name, own)}")
        return getattr(module, name)
    if hasattr(module, USUAL) and not inspect.ismodule(getattr(module, USUAL)):
        return getattr(module, USUAL)
    found = _candidates(module)
    if len(found) > 1:
        listed = " or ".join(f"{where}:{each}" for each in found)
        raise ConfigError(f"{where} has several workloads: name one of them, {listed}")
    if not found:
        raise ConfigError(_why_none(module, where))
    return next(iter(found.values()))


def _candidates(module: ModuleType) -> dict[str, Any]:
    """Return name → complete workload: the module itself (under no name), its classes and its objects."""
    if not _missing(module):
        return {"": module}
    found: dict[str, Any] = {}
    for name, value in _own(module):
        if not _missing(value) and all(value is not other for other in found.values()):
            found[name] = value
    return found


def _own(module: ModuleType) -> list[tuple[str, Any]]:
    """Return a module's own classes, and its objects, whatever their class."""
    public = [(name, value) for name, value in vars(module).items() if not name.startswith("_")]
    return [
        (name, value)
        for name, value in public
        if not inspect.ismodule(value) and (not inspect.isclass(value) or value.__module__ == module.__name__)
    ]


def _missing(value: Any) -> list[str]:
    return [part for part in REQUIRED if not callable(_attribute(value, part))]


def _attribute(value: Any, name: str) -> Any:
    try:
        return inspect.getattr_static(value, name, None) and getattr(value, name, None)
    except Exception:  # an object with odd attributes is no workload
        return None


def _why_none(module: ModuleType, where: str) -> str:
    """Return what the nearest thing to a workload lacks."""
    nearly = min([("", module), *_own(module)], key=lambda each: (len(_missing(each[1])), not inspect.isclass(each[1])))
    missing = _missing(nearly[1])
    if len(missing) == len(REQUIRED):
        return (
            f"{where} holds no workload: a class, object or module with {', '.join(REQUIRED)} "
            "(`unifiedamp init` writes one)"
        )
    return lacks(where if not nearly[0] else f"{where}:{nearly[0]}", missing)


def lacks(where: str, missing: list[str]) -> str:
    """Return the message on missing parts."""
    each = " and ".join(f"{part}({', '.join(REQUIRED[part])})" for part in missing)
    return f"{where} lacks {each}: every workload has {', '.join(REQUIRED)}"


def check(workload: Any, where: str) -> None:
    """Check that an object has every part, and that each can be called with its arguments.

    Args:
        workload: the object, module or class; of a class, its methods are checked.
        where: its name, for messages.

    Raises:
        ConfigError: a part is missing, or takes other arguments.
    """
    missing = _missing(workload)
    if missing:
        raise ConfigError(lacks(where, missing))
    for part, arguments in {**REQUIRED, **OPTIONAL}.items():
        function = getattr(workload, part, None)
        if function is None:
            continue
        if not callable(function):
            raise ConfigError(f"{where}: {part} must be a function, got {type(function).__name__}")
        _check_signature(workload, part, function, arguments, where)
    for one, other in PAIRS:
        if hasattr(workload, one) != hasattr(workload, other):
            present, absent = (one, other) if hasattr(workload, one) else (other, one)
            raise ConfigError(f"{where} has {present} but no {absent}: it needs both, or neither")


def _check_signature(
    owner: Any, part: str, function: Callable[..., Any], arguments: tuple[str, ...], where: str
) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature
        return
    of_class = inspect.isclass(owner) and inspect.isfunction(inspect.getattr_static(owner, part))
    wanted = ("self", *arguments) if of_class else arguments
    try:
        signature.bind(*wanted)
    except TypeError:
        raise ConfigError(
            f"{where}: {part} is called as {part}({', '.join(arguments)}), but it takes {signature}"
        ) from None
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"{where}: {part} is asynchronous (async def): write a plain function")
