"""Lists on the command line, checked before anything is started."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..backend import COMPILE_MODES
from ..config import plugins
from ..errors import BackendUnavailableError, ConfigError, PolicyError, nearest
from ..policy import Policy

LAUNCHERS = ("ray",)
"""What ``train`` can start processes with."""


def split(items: Sequence[str] | None) -> list[str]:
    """Return the words of an option that may be repeated, and may hold several at once behind commas."""
    found = [word.strip() for item in items or () for word in item.split(",")]
    return list(dict.fromkeys(word for word in found if word))


def one_of(words: Sequence[str], known: Collection[str], what: str) -> list[str]:
    """Return ``words``.

    Raises:
        ConfigError: one is not ``known`` (names the nearest).
    """
    for word in words:
        if word not in known:
            raise ConfigError(f"{what}: unknown {word!r}{nearest(word, known)} (known: {', '.join(known)})")
    return list(words)


def backends(items: Sequence[str] | None) -> list[str]:
    """Return the requested backends, or all that are installed.

    Raises:
        ConfigError: a name that is not registered.
        BackendUnavailableError: a framework that is not there, or none at all.
    """
    infos = plugins.available_backends()
    asked = split(items)
    for name in asked:
        if name not in infos:
            raise ConfigError(f"unknown backend {name!r}{plugins.suggestion(name)} (known: {', '.join(infos)})")
        if not infos[name].installed:
            raise BackendUnavailableError(f"backend {name!r}: {infos[name].reason}")
    found = asked or [name for name, info in infos.items() if info.installed]
    if not found:
        raise BackendUnavailableError(f"no framework is installed ({plugins.install_hints()})")
    return found


def one_backend(asked: str | None, supported: Collection[str] | None = None) -> str:
    """Return the requested backend, or the only one that is installed and supported.

    Raises:
        ConfigError: several are installed and none is named, or the name is unknown.
        BackendUnavailableError: its framework is not installed, or none is.
    """
    found = backends([asked] if asked else None)
    if supported is not None:
        found = [name for name in found if name in supported] or found[:1]
    if len(found) > 1:
        likely = [name for name in plugins.installed_backends() if name in found]
        raise ConfigError(f"name a backend: --backend {likely[0]} (installed: {', '.join(likely)})")
    return found[0]


def launcher(name: str | None, workers: int | None, max_restarts: int | None) -> None:
    """Check a launcher and its options.

    Raises:
        ConfigError: it is unknown, or an option of it is given without one.
    """
    given = {"--workers": workers, "--max-restarts": max_restarts}
    if name is not None:
        one_of([name], LAUNCHERS, "--launcher")
    elif any(value is not None for value in given.values()):
        option = next(option for option, value in given.items() if value is not None)
        raise ConfigError(f"{option} is of --launcher: pass --launcher {LAUNCHERS[0]} too")


def policies(items: Sequence[str] | None) -> list[str]:
    """Return the requested policies, as they are printed everywhere else; repeat the option for one with a comma in it.

    Raises:
        PolicyError: one cannot be read.
    """
    found: list[str] = []
    for item in items or ():
        try:
            found.append(str(Policy.parse(item)))
        except PolicyError:
            found += [str(Policy.parse(word)) for word in split([item])]
    return list(dict.fromkeys(found))


def compile_modes(items: Sequence[str] | None) -> list[str]:
    """Return the requested modes of ``amp.compile``."""
    return one_of(split(items), COMPILE_MODES, "--compile")


def sizes(items: Sequence[str] | None) -> list[int]:
    """Return the requested batch sizes.

    Raises:
        ConfigError: one is no whole number of at least 1.
    """
    words = split(items)
    for word in words:
        if not word.isdigit() or int(word) < 1:
            raise ConfigError(f"--batch-sizes takes whole numbers of at least 1 with commas between them, got {word!r}")
    return [int(word) for word in words]
