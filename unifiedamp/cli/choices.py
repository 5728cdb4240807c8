"""Lists on the command line, checked before anything is started."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .. import plugins
from ..backend import COMPILE_MODES
from ..errors import BackendUnavailableError, ConfigError, PolicyError, nearest
from ..policy import Policy


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
    """Return the backends asked for, or all that are installed.

    Raises:
        ConfigError: a name that nobody registered.
        BackendUnavailableError: a framework that is not there, or none at all.
    """
    infos = plugins.available_backends()
    asked = one_of(split(items), infos, "--backends")
    for name in asked:
        if not infos[name].installed:
            raise BackendUnavailableError(f"--backends {name}: {infos[name].reason}")
    found = asked or [name for name, info in infos.items() if info.installed]
    if not found:
        hints = "; ".join(f"{name}: {info.reason}" for name, info in infos.items())
        raise BackendUnavailableError(f"no framework is installed ({hints})")
    return found


def policies(items: Sequence[str] | None) -> list[str]:
    """Return the policies asked for, as they are printed everywhere else; repeat the option for one with a comma in it.

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
    """Return the modes of ``amp.compile`` asked for."""
    return one_of(split(items), COMPILE_MODES, "--compile")


def sizes(items: Sequence[str] | None) -> list[int]:
    """Return the batch sizes asked for.

    Raises:
        ConfigError: one is no whole number of at least 1.
    """
    words = split(items)
    for word in words:
        if not word.isdigit() or int(word) < 1:
            raise ConfigError(f"--batch-sizes takes whole numbers of at least 1 with commas between them, got {word!r}")
    return [int(word) for word in words]
