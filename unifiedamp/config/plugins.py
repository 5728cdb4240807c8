"""Backend plugins: discovery by entry point, and what is installed.

Backends register under the entry-point group ``unifiedamp.backends``; the object named is a module (or object) with
the hook ``unifiedamp_backend``. Each is loaded by name, and separately: a broken one affects no other.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, cached_property, lru_cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from typing import Any

import pluggy

from ..backend import Backend, BackendPlugin, Capabilities, SessionSpec
from ..errors import BackendNotFoundError, BackendUnavailableError

GROUP = "unifiedamp.backends"

hookspec = pluggy.HookspecMarker("unifiedamp")


class BackendHooks:
    """What a backend plugin implements."""

    @hookspec(firstresult=True)
    def unifiedamp_backend(self) -> BackendPlugin:  # type: ignore[empty-body]  # pluggy reads its signature
        """Return the backend's light description; import no framework here."""


@dataclass(frozen=True)
class BackendInfo:
    """Whether a backend can be used; making one imports no framework, reading ``capabilities`` does.

    Attributes:
        name: the backend's name.
        installed: whether plugin and framework are found.
        version: the framework's version, or None.
        reason: why it is not installed or could not be loaded; empty when all is well.
        install: the command that installs it.
    """

    name: str
    installed: bool
    version: str | None
    reason: str
    install: str
    plugin: BackendPlugin | None = None

    @cached_property
    def capabilities(self) -> Capabilities:
        """Devices and dtypes, each with a reason. Imports the framework.

        Raises:
            BackendUnavailableError: it is missing or fails to import.
        """
        from ..policy import PRESETS

        spec = SessionSpec(PRESETS["float32"], PRESETS["float32"].resolved_loss_scale)
        backend: Backend = load_backend(self.name)(spec)
        return backend.capabilities()

    @property
    def devices(self) -> tuple[str, ...]:
        """The device that a session takes by itself."""
        return (self.capabilities.device,) if self.installed else ()

    @property
    def dtypes(self) -> Mapping[str, Any]:
        """Preset → ``Support`` on that device."""
        return self.capabilities.policies if self.installed else {}


@dataclass(frozen=True)
class InProcess:
    """A backend registered by :func:`register`; answers as an entry point does."""

    name: str
    module: object

    @property
    def value(self) -> str:
        """Where it comes from, for messages."""
        return f"registered in this process: {self.module!r}"

    def load(self) -> object:
        """Return the module."""
        return self.module


_in_process: dict[str, InProcess] = {}


def register(name: str, module: object) -> None:
    """Register a backend for this process alone, as its entry point would (for tests of a backend not installed yet).

    Args:
        name: the backend's name.
        module: a module or object with the hook ``unifiedamp_backend``.
    """
    _in_process[name] = InProcess(name, module)


def backend_entry_points() -> Mapping[str, EntryPoint | InProcess]:
    """Return name → entry point of every registered backend."""
    return dict(sorted({**_installed_points(tuple(sys.path)), **_in_process}.items()))


@lru_cache(maxsize=1)
def _installed_points(_path: tuple[str, ...]) -> dict[str, EntryPoint | InProcess]:
    """Read the metadata of all that is installed, which takes long, once for each import path."""
    return {point.name: point for point in entry_points(group=GROUP)}


def load_plugin(name: str) -> BackendPlugin:
    """Load one backend's description, and no other's.

    Raises:
        BackendNotFoundError: no such name (lists the known ones, the nearest, how to install).
        BackendUnavailableError: the plugin itself is broken; its own message is inside.
    """
    points = backend_entry_points()
    if name not in points:
        known = ", ".join(points) or "none"
        raise BackendNotFoundError(
            f"unknown backend {name!r}{suggestion(name)} (registered: {known}). Another backend comes with a package "
            f"that registers the entry point {GROUP!r}: pip install it"
        )
    try:
        with redirect_stdout(sys.stderr):  # standard output is the user's, and a command's JSON
            plugin = _call_hook(points[name].load(), name)
    except (Exception, SystemExit) as error:
        raise BackendUnavailableError(
            f"the plugin of backend {name!r} ({points[name].value}) is broken: {_one_line(error)}"
        ) from error
    if not isinstance(plugin, BackendPlugin) or not isinstance(plugin.framework, str) or not plugin.framework:
        raise BackendUnavailableError(
            f"the plugin of backend {name!r} ({points[name].value}) returned {plugin!r}, not a BackendPlugin"
        )
    return plugin


def _call_hook(module: object, name: str) -> Any:
    manager = pluggy.PluginManager("unifiedamp")
    manager.add_hookspecs(BackendHooks)
    manager.register(module, name)
    manager.check_pending()
    return manager.hook.unifiedamp_backend()


def _one_line(error: BaseException) -> str:
    """Return an error on one line; pluggy's errors about a hook's arguments have several."""
    said = " ".join(str(error).split())
    return f"it ended the program (exit code {said or 0})" if isinstance(error, SystemExit) else said


def suggestion(name: str) -> str:
    """Return ``", did you mean 'x'?"`` for the backend whose name or alias is closest, or an empty string."""
    words = {known: known for known in backend_entry_points()}
    for known in list(words):
        try:
            words |= dict.fromkeys(load_plugin(known).aliases, known)
        except BackendUnavailableError:
            continue
    close = get_close_matches(str(name).lower(), words, n=1, cutoff=0.5)
    return f"; did you mean {words[close[0]]!r}?" if close else ""


def installed_backends() -> list[str]:
    """Return the names of the backends whose framework is installed, those that are likely meant first."""
    infos = [info for info in available_backends().values() if info.installed and info.plugin]
    return [info.name for info in sorted(infos, key=lambda info: (info.plugin.place if info.plugin else 0, info.name))]


def install_hints() -> str:
    """Return how each registered backend's framework is installed, likely ones first."""
    infos = sorted(available_backends().values(), key=lambda info: info.plugin.place if info.plugin else 0)
    return "; ".join(f"{info.name}: {info.reason or 'installed'}" for info in infos) or "no backend is registered"


def load_backend(name: str) -> Any:
    """Import one backend's framework and return its ``Backend`` class.

    Raises:
        BackendNotFoundError, BackendUnavailableError: see :func:`load_plugin`; the framework is missing or broken.
    """
    plugin = load_plugin(name)
    if plugin.unavailable:
        raise BackendUnavailableError(f"backend {name!r}: {plugin.unavailable}")
    if not is_installed(plugin.framework):
        raise BackendUnavailableError(
            f"backend {name!r} needs {plugin.framework}, which is not installed: {plugin.install}"
        )
    try:
        backend = plugin.load()
    except Exception as error:
        found = installed_version(plugin) or "unknown version"
        raise BackendUnavailableError(
            f"backend {name!r}: {plugin.framework} ({found}) is installed but fails to import: "
            f"{type(error).__name__}: {error}. {_import_hint(plugin, error)}"
        ) from error
    if not isinstance(backend, type) or not issubclass(backend, Backend):
        raise BackendUnavailableError(
            f"the plugin of backend {name!r}: load() returned {backend!r}, not a class derived from Backend"
        )
    return backend


def _import_hint(plugin: BackendPlugin, error: BaseException) -> str:
    hint = plugin.import_hint(error) if plugin.import_hint is not None else ""
    return hint or f"Mend or reinstall it: {plugin.install}"


def is_installed(framework: str) -> bool:
    """Return whether a framework can be imported, without doing so; a mere directory of its name does not count."""
    try:
        spec = importlib.util.find_spec(framework)
    except (ImportError, ValueError):  # a part of a package that is not there
        return False
    return spec is not None and spec.origin is not None


@cache
def _version_of(distribution: str) -> str:
    return version(distribution)  # parses the whole metadata, which takes milliseconds


def installed_version(plugin: BackendPlugin) -> str | None:
    """Return the framework's version from its distribution's metadata, without importing it."""
    for distribution in plugin.distributions:
        try:
            return _version_of(distribution)
        except PackageNotFoundError:
            continue
    return None


def available_backends() -> dict[str, BackendInfo]:
    """Return name → what is known of each registered backend, importing no framework."""
    return {name: backend_info(name) for name in backend_entry_points()}


def backend_info(name: str) -> BackendInfo:
    """Return what is known of one registered backend, importing no framework.

    Raises:
        BackendNotFoundError: no such name.
    """
    try:
        plugin = load_plugin(name)
    except BackendUnavailableError as error:
        return BackendInfo(name, False, None, str(error), "")
    found = is_installed(plugin.framework) and not plugin.unavailable
    reason = plugin.unavailable or ("" if found else f"{plugin.framework} is not installed: {plugin.install}")
    return BackendInfo(name, found, installed_version(plugin) if found else None, reason, plugin.install, plugin)
