"""``BackendPlugin``: the light descriptor that an entry point names; making one imports no framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pluggy

from .backend import Backend

hookimpl = pluggy.HookimplMarker("unifiedamp")
"""Marks the functions of a plugin that unifiedamp calls: ``unifiedamp_backend``."""


@dataclass(frozen=True)
class BackendPlugin:
    """What an entry point in the group ``unifiedamp.backends`` names. Making one imports no framework.

    Args:
        name: the backend's name, as users write it.
        framework: the framework's import name, looked up without importing it.
        distributions: distribution names that may hold it, for the version.
        install: the command that installs it.
        load: imports the framework and returns the Backend class.
        harness: module of the conformance harness, holding an object ``harness``; empty when there is none.
        modules: roots of the modules that the types of its tensors and models come from, where ``framework`` is not
            the only one ("jaxlib").
        sharing: environment variables under which several processes can share a device.
        aliases: other words that users write for it; an unknown name that is like one of them gets it suggested.
        place: where it stands among the installed backends that a message suggests; small numbers first.
        unavailable: why the framework cannot run under this Python, whatever is installed; empty where it can.
        import_hint: takes the error of a failed import and returns what to do about it; empty text where it does not
            know.
        options: setting of ``backend_options`` → JSON schema of its value, with a description; for ``unifiedamp
            schema``. None where any are taken.
    """

    name: str
    framework: str
    distributions: tuple[str, ...]
    install: str
    load: Callable[[], type[Backend]]
    harness: str = ""
    modules: tuple[str, ...] = ()
    sharing: Mapping[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    place: int = 100
    unavailable: str = ""
    import_hint: Callable[[BaseException], str] | None = None
    options: Mapping[str, Mapping[str, object]] | None = None
