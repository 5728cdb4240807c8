"""Loss scales as users write them: numbers, names, text and mappings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..errors import ConfigError, nearest, shown
from ..plain_values import plain
from .settings import KINDS, LossScale, StaticLossScale

WORDS = frozenset(
    name for loss_scale in KINDS.values() for name, each in loss_scale.settings().items() if each.kind == "word"
)
"""Settings whose value is a word."""


def parse_loss_scale(value: object) -> LossScale:
    """Return the loss scale that a value describes.

    Args:
        value: a ``LossScale``; a positive number (static); ``"dynamic"``, ``"none"``, ``"static(scale=128.0)"``; or a
            mapping of a ``kind`` and the fields of that kind (``kind`` is ``dynamic`` when left out).

    Raises:
        ConfigError: the value has no meaning as a loss scale; the message names the nearest key.
    """
    value = plain(value, "loss_scale")
    if isinstance(value, LossScale):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return StaticLossScale(value)
    if isinstance(value, Mapping):
        return _from_mapping(value)
    if isinstance(value, str):
        return _from_text(value.strip())
    raise ConfigError(f"loss_scale must be a number, a name, a mapping or a LossScale, got {shown(value)}")


def _from_mapping(mapping: Mapping[Any, Any]) -> LossScale:
    options = dict(mapping)
    kind = options.pop("kind", "dynamic")
    if not isinstance(kind, str) or kind not in KINDS:
        hint = nearest(kind, KINDS) if isinstance(kind, str) else ""
        raise ConfigError(f"unknown loss scale {shown(kind)}: one of {', '.join(sorted(KINDS))}{hint}")
    known = [f.name for f in fields(KINDS[kind])]
    for key in options:
        if key not in known:
            raise ConfigError(f"loss_scale ({kind}) has no setting {shown(key)}{nearest(shown(key), known)}")
    return KINDS[kind](**options)


def _from_text(text: str) -> LossScale:
    name, bracket, rest = text.partition("(")
    if not bracket:
        try:
            scale = float(name)
        except ValueError:
            return _from_mapping({"kind": name.lower()})
        return StaticLossScale(scale)
    if not rest.endswith(")"):
        raise ConfigError(f"loss scale {text!r} lacks its closing bracket")
    options: dict[str, Any] = {"kind": name.strip().lower()}
    for item in filter(None, (part.strip() for part in rest[:-1].split(","))):
        key, _, number = item.partition("=")
        word = key.strip() in WORDS
        options[key.strip()] = number.strip() if word else _number(number.strip(), text)
    return _from_mapping(options)


def _number(text: str, whole: str) -> int | float:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    raise ConfigError(f"loss scale {whole!r}: {text!r} is not a number")
