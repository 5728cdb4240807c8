"""Which versions of a library an integration works with."""

from __future__ import annotations

import re
from importlib import metadata

from ..errors import UnsupportedError


def require(distribution: str, least: str, module: str) -> None:
    """Refuse a library that is too old for an integration.

    Args:
        distribution: the library's name, as pip has it.
        least: the oldest version that works.
        module: the integration, for the message.

    Raises:
        UnsupportedError: the installed version is older.
        ModuleNotFoundError: it is not installed.
    """
    try:
        found = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        raise ModuleNotFoundError(
            f"{module} needs {distribution} {least} or newer, and it is not installed: "
            f"pip install '{distribution}>={least}'",
            name=distribution,
        ) from None
    if _numbers(found) < _numbers(least):
        raise UnsupportedError(
            f"{module} needs {distribution} {least} or newer, found {found}: pip install -U '{distribution}>={least}'"
        )


def _numbers(version: str) -> tuple[int, ...]:
    """Return the release of a version: its leading numbers."""
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in release.group().split(".")) if release else ()
