"""Configuration containers as plain values: OmegaConf's, as Hydra hands them to an application.

Nothing is imported: a value can only be OmegaConf's where the program has imported OmegaConf.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from .errors import ConfigError


def plain(value: Any, where: str = "configuration") -> Any:
    """Return ``value`` with each ``DictConfig`` and ``ListConfig`` in it as a dict or list; others as they are.

    Interpolations are resolved, and enumeration members become their names.

    Args:
        value: anything; mappings, lists and tuples are searched.
        where: what messages call it.

    Raises:
        ConfigError: a value is missing (``???``) or an interpolation cannot be resolved; the message has its full key.
    """
    omegaconf = sys.modules.get("omegaconf")
    return value if omegaconf is None else _plain(value, where, omegaconf)


def table_of(source: Mapping[str, Any], name: str) -> Any:
    """Return ``source[name]`` where ``source`` has that key, else ``source``.

    The rest of an OmegaConf configuration is not read: it may have missing values too.
    """
    if name not in list(source):
        return source
    try:
        return source[name]
    except Exception as error:
        raise _explained(error, name) from error


def _plain(value: Any, where: str, omegaconf: Any) -> Any:
    if omegaconf.OmegaConf.is_config(value):
        try:
            return omegaconf.OmegaConf.to_container(value, resolve=True, throw_on_missing=True, enum_to_str=True)
        except omegaconf.errors.OmegaConfBaseException as error:
            raise _explained(error, where) from error
    if isinstance(value, Mapping) and _holds_config(value.values(), omegaconf):
        return {key: _plain(each, f"{where}.{key}", omegaconf) for key, each in value.items()}
    if isinstance(value, (list, tuple)) and _holds_config(value, omegaconf):
        found = [_plain(each, where, omegaconf) for each in value]
        return found if isinstance(value, list) else tuple(found)
    return value


def _holds_config(values: Any, omegaconf: Any) -> bool:
    """Whether there is a container of OmegaConf's among ``values``, at any depth."""
    return any(
        omegaconf.OmegaConf.is_config(each)
        or (isinstance(each, Mapping) and _holds_config(each.values(), omegaconf))
        or (isinstance(each, (list, tuple)) and _holds_config(each, omegaconf))
        for each in values
    )


def _explained(error: Exception, where: str) -> ConfigError:
    key = getattr(error, "full_key", None) or where
    if "Missing" in type(error).__name__:
        return ConfigError(f"{where}: {key} is missing ('???'): give it a value ({key}=... on Hydra's command line)")
    text = str(error).partition("\n")[0]
    return ConfigError(f"{where}: {key} cannot be read: {text}")
