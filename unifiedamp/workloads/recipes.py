"""The example recipe, found when a command asks for it: core itself does without."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

from ..errors import ConfigError, nearest

PACKAGE = "unifiedamp_examples"


def recipe_module(name: str) -> ModuleType:
    """Return a module of the recipe ("recipe", "settings", "models", …).

    Raises:
        ConfigError: the recipe is not in this installation, or a library that it needs is not.
    """
    try:
        return importlib.import_module(f"{PACKAGE}.{name}")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"this command runs the example recipe, whose module {PACKAGE}.{name} cannot be imported "
            f"({error}): install unifiedamp whole, from its wheel or a checkout"
        ) from error


def find_config(config: str) -> Path:
    """Return the file named, or the recipe's own configuration of that name.

    Raises:
        ConfigError: neither is there (names the nearest).
    """
    path = Path(config)
    if path.suffix or path.exists():
        return path
    shipped = Path(str(recipe_module("settings").__file__)).parent / "configs"
    names = sorted(file.stem for file in shipped.glob("*.toml"))
    if config not in names:
        raise ConfigError(
            f"configuration {config!r} is neither a file nor one of the recipe's{nearest(config, names)} "
            f"(they are: {', '.join(names)})"
        )
    return shipped / f"{config}.toml"
