"""A workload made from its file: found, checked, and its settings applied."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ...errors import ConfigError, UnsupportedError
from . import candidates, settings
from .frameworks import likely_backends, load_frameworks
from .protocol import OPTIONAL, REQUIRED
from .reference import Reference, import_file


@dataclass(frozen=True)
class Definition:
    """A workload that is found and not yet made.

    Attributes:
        name: the file's name, with the workload's where it has one.
        target: a class, function, object or module.
        settings: its settings, by name.
        likely: installed backends whose framework its file imports.
    """

    name: str
    target: Any
    settings: Mapping[str, settings.Setting]
    likely: tuple[str, ...] = ()

    @property
    def is_factory(self) -> bool:
        """Whether the target is called for the workload: a class, or a function."""
        return inspect.isclass(self.target) or inspect.isfunction(self.target) or _is_partial(self.target)

    @property
    def backends(self) -> tuple[str, ...] | None:
        """The backends that it names; None for all."""
        return _backends(self.target, self.name)

    @property
    def usual_backends(self) -> tuple[str, ...] | None:
        """The backends to run it under where none is named; None for all."""
        return self.likely or None if self.backends is None else self.backends

    def default(self, name: str) -> Any:
        """Return the default of a setting; None where it has none."""
        found = self.settings[name].default
        return None if found is settings.REQUIRED else found


@dataclass(frozen=True)
class Loaded:
    """A workload that is made.

    Attributes:
        name: as of its :class:`Definition`.
        parts: name → function, with its settings applied.
        settings: name → the value in force, as JSON has it.
        may_change: settings that a resumed run may change.
    """

    name: str
    parts: Mapping[str, Callable[..., Any]]
    settings: Mapping[str, Any]
    may_change: frozenset[str]

    def has(self, part: str) -> bool:
        """Return whether the workload has an optional part."""
        return part in self.parts

    def call(self, part: str, *arguments: Any) -> Any:
        """Return what a part returns.

        Raises:
            ConfigError: it returned nothing.
        """
        found = self.parts[part](*arguments)
        if found is None and not part.startswith("import_"):
            raise ConfigError(f"{self.name}: {part} returned nothing (None)")
        return found

    def batches(self, epoch: int) -> Iterable[Any]:
        """Return the batches of an epoch.

        Raises:
            ConfigError: what the workload returned is no iterable.
        """
        found = self.call("batches", epoch)
        if isinstance(found, (str, bytes, Mapping)) or not hasattr(found, "__iter__"):
            raise ConfigError(
                f"{self.name}: batches({epoch}) must return an iterable of batches, got {type(found).__name__}"
            )
        return found  # type: ignore[no-any-return]  # checked above


def define(reference: Reference) -> Definition:
    """Import a file and return the workload in it.

    Raises:
        ConfigError: the file cannot be imported, or holds no workload, several, or one that is not whole.
    """
    load_frameworks(reference.path)
    target = candidates.find(import_file(reference.path), reference.name, reference.path.name)
    name = reference.path.name if reference.name is None else f"{reference.path.name}:{reference.name}"
    factory = inspect.isfunction(target) or _is_partial(target)
    if not factory:
        candidates.check(target, name)
    return Definition(name, target, _settings(target, factory), tuple(likely_backends(reference.path)))


def _settings(target: Any, factory: bool) -> dict[str, settings.Setting]:
    if factory or inspect.isclass(target) or _is_dataclass_object(target):
        return settings.settings_of([target if factory or inspect.isclass(target) else type(target)])
    parts = {**REQUIRED, **OPTIONAL}
    present = [part for part in parts if callable(getattr(target, part, None))]
    return settings.settings_of([getattr(target, part) for part in present], [len(parts[part]) for part in present])


def make(definition: Definition, given: Mapping[str, Any], backend: str) -> Loaded:
    """Return the workload with these settings.

    Args:
        definition: what the file holds.
        given: setting → value.
        backend: the name of the backend it is made for.

    Raises:
        ConfigError: a setting is wrong, or what a function returned is no workload.
        UnsupportedError: the workload does not support the backend.
    """
    chosen = settings.values(definition.settings, given, definition.name)
    check_backend(definition, backend)
    made = _made(definition, chosen, backend)
    if made is None:
        raise ConfigError(f"{definition.name} returned nothing (None): return the workload")
    candidates.check(made, definition.name)
    parts = {name: getattr(made, name) for name in (*REQUIRED, *OPTIONAL) if hasattr(made, name)}
    if made is definition.target:  # settings are keywords of the parts
        parts = {name: _bound(part, chosen) for name, part in parts.items()}
    in_force = {name: chosen.get(name, setting.default) for name, setting in definition.settings.items()}
    return Loaded(definition.name, parts, {name: plain(value) for name, value in in_force.items()}, _may_change(made))


def check_backend(definition: Definition, backend: str) -> None:
    """Check that a workload is written for a backend.

    Raises:
        UnsupportedError: it names others.
    """
    known = definition.backends
    if known is not None and backend not in known:
        raise UnsupportedError(
            f"{definition.name} does not support backend {backend!r} (its backends: {', '.join(known) or 'none'})"
        )


def _made(definition: Definition, chosen: Mapping[str, Any], backend: str) -> Any:
    target = definition.target
    if _is_dataclass_object(target):
        return dataclasses.replace(target, **chosen) if chosen else target
    if not definition.is_factory:
        return target
    takes = _parameters(target)
    return target(**chosen, **({settings.GIVEN: backend} if settings.GIVEN in takes else {}))


def _bound(part: Callable[..., Any], chosen: Mapping[str, Any]) -> Callable[..., Any]:
    takes = _parameters(part)
    wanted = {name: value for name, value in chosen.items() if name in takes}
    return functools.partial(part, **wanted) if wanted else part


def _parameters(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(target).parameters
    except (TypeError, ValueError):
        return {}


def _is_partial(target: Any) -> bool:
    return isinstance(target, functools.partial)


def _is_dataclass_object(target: Any) -> bool:
    return dataclasses.is_dataclass(target) and not inspect.isclass(target) and not isinstance(target, ModuleType)


def _backends(target: Any, name: str) -> tuple[str, ...] | None:
    found = getattr(target, "backends", None)
    return None if found is None else _names(found, f"{name}: backends")


def _may_change(made: Any) -> frozenset[str]:
    return frozenset(_names(getattr(made, "may_change", ()), "may_change"))


def _names(found: Any, where: str) -> tuple[str, ...]:
    words = tuple(found) if isinstance(found, Iterable) and not isinstance(found, str) else (found,)
    if not all(isinstance(word, str) for word in words):
        raise ConfigError(f"{where} must be a tuple of names, got {found!r:.80}")
    return words


def plain(value: Any) -> Any:
    """Return a setting's value as JSON has it; what JSON has not, as text."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return str(value)
