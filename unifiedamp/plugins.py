"""Plugins: hook specifications, discovery by entry point, and what is installed.

Backends register under the entry-point group ``unifiedamp.backends``; the object named is a module (or object) with
the hook ``unifiedamp_backend``. Each is loaded by name, inside a try: a broken one harms nobody else.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from typing import Any

import pluggy

from .backend import Backend, BackendPlugin, Capabilities, NonFiniteReport, SessionSpec, hookimpl
from .errors import BackendNotFoundError, BackendUnavailableError, ConfigError, nearest
from .loss_scale import ScaleState

GROUP = "unifiedamp.backends"

hookspec = pluggy.HookspecMarker("unifiedamp")


class BackendHooks:
    """What a backend plugin implements."""

    @hookspec(firstresult=True)
    def unifiedamp_backend(self) -> BackendPlugin:  # type: ignore[empty-body]
        """Return the backend's light description; import no framework here."""


class ObserverHooks:
    """What an observer may implement, plain methods of these names; a hook takes the arguments it names."""

    @hookspec
    def on_step_skipped(self, state: ScaleState, report: NonFiniteReport) -> None:
        """Steps were skipped for non-finite gradients; ``state`` is the state after."""

    @hookspec
    def on_scale_changed(self, before: float, after: float, state: ScaleState) -> None:
        """The loss scale moved."""

    @hookspec
    def on_scale_exhausted(self, state: ScaleState, report: NonFiniteReport) -> None:
        """Too many skips in a row; ``LossScaleExhausted`` is raised right after."""

    @hookspec
    def on_checkpoint(self, path: str) -> None:
        """A checkpoint was written to ``path``."""


def add_observer(hooks: Any, observer: object) -> Any:
    """Register ``observer`` and return the hook caller (a new one when ``hooks`` is None).

    Raises:
        ConfigError: the observer has no hook, or a name that starts with ``on_`` and is none.
    """
    known = [name for name in vars(ObserverHooks) if name.startswith("on_")]
    mine = [name for name in dir(observer) if name.startswith("on_")]
    for name in mine:
        if name not in known:
            raise ConfigError(
                f"observer {type(observer).__name__} has {name!r}, which is no hook{nearest(name, known)}"
            )
    if not mine:
        raise ConfigError(f"observer {type(observer).__name__} has none of the hooks {', '.join(known)}")
    relay = hooks if hooks is not None else ObserverRelay()
    relay.manager.register(_Marked(observer, mine))
    return relay


class ObserverRelay:
    """Passes hook calls on to the observers of one session."""

    def __init__(self) -> None:
        self.manager = pluggy.PluginManager("unifiedamp")
        self.manager.add_hookspecs(ObserverHooks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.manager.hook, name)


class _Marked:
    """An observer's hooks, marked for pluggy, so that observers themselves need not know of it."""

    def __init__(self, observer: object, names: list[str]) -> None:
        for name in names:
            method = getattr(observer, name)
            setattr(self, name, hookimpl(method.__func__).__get__(observer) if hasattr(method, "__func__") else method)


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
        from .policy import PRESETS

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
            f"unknown backend {name!r}{nearest(name, points)} (registered: {known}). A backend comes with a package "
            f"that registers the entry point {GROUP!r}; ours: pip install 'unifiedamp[torch]' (or tensorflow, mxnet)"
        )
    try:
        manager = pluggy.PluginManager("unifiedamp")
        manager.add_hookspecs(BackendHooks)
        manager.register(points[name].load(), name)
        manager.check_pending()
        plugin = manager.hook.unifiedamp_backend()
    except Exception as error:
        raise BackendUnavailableError(
            f"the plugin of backend {name!r} ({points[name].value}) is broken: {error}"
        ) from error
    if not isinstance(plugin, BackendPlugin):
        raise BackendUnavailableError(
            f"the plugin of backend {name!r} ({points[name].value}) returned {plugin!r}, not a BackendPlugin"
        )
    return plugin


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
        return plugin.load()
    except Exception as error:
        found = installed_version(plugin) or "unknown version"
        raise BackendUnavailableError(
            f"backend {name!r}: {plugin.framework} ({found}) is installed but fails to import: "
            f"{type(error).__name__}: {error}. {_import_hint(plugin, error)}"
        ) from error


def _import_hint(plugin: BackendPlugin, error: BaseException) -> str:
    hint = plugin.import_hint(error) if plugin.import_hint is not None else ""
    return hint or f"Mend or reinstall it: {plugin.install}"


def is_installed(framework: str) -> bool:
    """Tell whether a framework can be imported, without doing so; a mere directory of its name does not count."""
    spec = importlib.util.find_spec(framework)
    return spec is not None and spec.origin is not None


def installed_version(plugin: BackendPlugin) -> str | None:
    """Return the framework's version from its distribution's metadata, without importing it."""
    for distribution in plugin.distributions:
        try:
            return version(distribution)
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
