"""The settings of a workload: keyword defaults of a class or of functions, and the values given for them."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigError, nearest, shown

GIVEN = "backend"
"""The parameter that the command fills in: the name of the backend."""
REQUIRED = inspect.Parameter.empty
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class Setting:
    """One setting: its type, and its default (``REQUIRED`` for none)."""

    type: Any
    default: Any


def read_assignments(words: Sequence[str]) -> dict[str, Any]:
    """Return what ``--set key=value …`` says, each value as text.

    Raises:
        ConfigError: one has no equals sign or no key.
    """
    found: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set takes key=value, got {word!r}")
        found[key.strip()] = value.strip()
    return found


def settings_of(callables: Sequence[Callable[..., Any]], arguments: int | Sequence[int] = 0) -> dict[str, Setting]:
    """Return the settings that functions or a class take.

    Args:
        callables: whose parameters they are; a parameter named ``backend`` is none.
        arguments: how many leading parameters of each are no settings.
    """
    leading = [arguments] * len(callables) if isinstance(arguments, int) else arguments
    found: dict[str, Setting] = {}
    for each, skipped in zip(callables, leading, strict=True):
        hints = _hints(each)
        for name, parameter in list(_parameters(each).items())[skipped:]:
            if parameter.kind in _NAMED and name != GIVEN:
                found.setdefault(name, Setting(hints.get(name, Any), parameter.default))
    return found


def _parameters(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(target).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return {}


def _hints(target: Any) -> dict[str, Any]:
    for each in (getattr(target, "__init__", None), target) if inspect.isclass(target) else (target,):
        try:
            found = typing.get_type_hints(each, include_extras=True)
        except Exception:  # a name that only type checkers import
            continue
        if found:
            return found
    return {}


def values(known: Mapping[str, Setting], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the given values, each of its setting's type.

    Args:
        known: the workload's settings.
        given: name → value; text is read as the setting's type.
        where: the workload, for messages.

    Raises:
        ConfigError: an unknown name (names the nearest), a value of another type, or a setting without a value.
    """
    for name in given:
        if name not in known:
            listed = ", ".join(known) or "it has none"
            raise ConfigError(f"{where} has no setting {name!r}{nearest(name, known)} (settings: {listed})")
    for name, setting in known.items():
        if setting.default is REQUIRED and name not in given:
            raise ConfigError(f"{where}: setting {name!r} has no default; give it: --set {name}=VALUE")
    return {name: _value(name, known[name], value, where) for name, value in given.items()}


def _value(name: str, setting: Setting, given: Any, where: str) -> Any:
    from pydantic import PydanticUserError, TypeAdapter, ValidationError
    from pydantic.errors import PydanticSchemaGenerationError

    wanted = _type(setting)
    if wanted is Any:
        return _parsed(given)
    try:
        adapter = TypeAdapter(wanted)
    except (PydanticUserError, PydanticSchemaGenerationError, NameError):
        return _parsed(given)
    problem = ""
    for candidate in _candidates(given):
        try:
            return adapter.validate_python(candidate)
        except ValidationError as error:
            problem = problem or str(error.errors(include_url=False)[0]["msg"])
    raise ConfigError(f"{where}: setting {name!r}: {problem} (got {shown(given)})")


def _type(setting: Setting) -> Any:
    if setting.type is not Any:
        return setting.type
    if setting.default is REQUIRED or setting.default is None:
        return Any
    return type(setting.default)


def _parsed(given: Any) -> Any:
    return _candidates(given)[0]


def _candidates(given: Any) -> list[Any]:
    """Return what a value can mean: text as a number, truth value, list or none; then as it is."""
    if not isinstance(given, str):
        return [given]
    text = {"True": "true", "False": "false", "None": "null", "none": "null"}.get(given, given)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return [given]
    return [found, given]
