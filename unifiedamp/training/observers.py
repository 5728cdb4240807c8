"""Observers: objects whose hooks are called when steps are skipped, the scale changes, or a checkpoint is written."""

from __future__ import annotations

import inspect
from typing import Any

import pluggy

from ..backend import NonFiniteReport, hookimpl
from ..errors import ConfigError, nearest
from ..loss_scale import ScaleState

hookspec = pluggy.HookspecMarker("unifiedamp")


class ObserverHooks:
    """What an observer may implement, plain methods of these names; a hook takes the arguments it names."""

    @hookspec
    def on_step_skipped(self, state: ScaleState, report: NonFiniteReport) -> None:
        """Steps were skipped for non-finite gradients; ``state`` is the state after."""

    @hookspec
    def on_scale_changed(self, before: float, after: float, state: ScaleState) -> None:
        """The loss scale changed."""

    @hookspec
    def on_scale_exhausted(self, state: ScaleState, report: NonFiniteReport) -> None:
        """Too many skips in a row; ``LossScaleExhausted`` is raised right after."""

    @hookspec
    def on_checkpoint(self, path: str) -> None:
        """A checkpoint was written to ``path``."""


def add_observer(hooks: Any, observer: object) -> Any:
    """Register ``observer`` and return the hook caller (a new one when ``hooks`` is None).

    Raises:
        ConfigError: the observer has no hook, a name that starts with ``on_`` and is none, or a hook that takes
            arguments which it is not given.
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
    for name in mine:
        _check_arguments(observer, name)
    relay = hooks if hooks is not None else ObserverRelay()
    relay.manager.register(_Marked(observer, mine))
    return relay


def _check_arguments(observer: object, name: str) -> None:
    hook = getattr(observer, name)
    if not callable(hook):
        raise ConfigError(f"observer {type(observer).__name__}: {name} must be a method, got {hook!r}")
    given = list(inspect.signature(vars(ObserverHooks)[name]).parameters)[1:]
    needed = [
        one.name
        for one in inspect.signature(hook).parameters.values()
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    for word in needed:
        if word not in given:
            raise ConfigError(
                f"observer {type(observer).__name__}: {name} takes {word!r}, and is given {', '.join(given)}: "
                "name those of them that it needs"
            )


class ObserverRelay:
    """Passes hook calls on to the observers of one session."""

    def __init__(self) -> None:
        self.manager = pluggy.PluginManager("unifiedamp")
        self.manager.add_hookspecs(ObserverHooks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.manager.hook, name)


class _Marked:
    """An observer's hooks, marked for pluggy, so that observers need not import it."""

    def __init__(self, observer: object, names: list[str]) -> None:
        for name in names:
            method = getattr(observer, name)
            setattr(self, name, hookimpl(method.__func__).__get__(observer) if hasattr(method, "__func__") else method)
