"""Apex's options: what an ``opt_level`` stands for, what the user overrides, and the table that is printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from unifiedamp.errors import ConfigError, nearest

HALF = (torch.float16, torch.bfloat16)
_DTYPES = (torch.float32, *HALF)


@dataclass(frozen=True)
class Options:
    """The properties that Apex resolves, in the order that it prints.

    Attributes:
        enabled: False makes every call do nothing.
        opt_level: "O0" to "O3".
        cast_model_type: dtype of the model's parameters and inputs; at O1 None, or the dtype that casts are made to.
        patch_torch_functions: run the model's forward under autocast.
        keep_batchnorm_fp32: keep normalization layers in float32 while the rest is cast; None where nothing is cast.
        master_weights: the optimizer trains float32 copies of the parameters that were cast.
        loss_scale: "dynamic" or a number.
    """

    enabled: bool
    opt_level: str
    cast_model_type: Any
    patch_torch_functions: bool
    keep_batchnorm_fp32: bool | None
    master_weights: bool | None
    loss_scale: float | str

    def lines(self) -> list[str]:
        """Return one ``name : value`` line per option."""
        return [f"{field.name:<22} : {getattr(self, field.name)}" for field in fields(self)]


LEVELS: dict[str, Options] = {
    "O0": Options(True, "O0", torch.float32, False, None, False, 1.0),
    "O1": Options(True, "O1", None, True, None, None, "dynamic"),
    "O2": Options(True, "O2", torch.float16, False, True, True, "dynamic"),
    "O3": Options(True, "O3", torch.float16, False, False, False, 1.0),
}

MEANINGS = {
    "O0": "float32 throughout.",
    "O1": "float32 parameters; the model's forward runs under autocast.",
    "O2": "16-bit parameters, float32 normalization layers and float32 master weights.",
    "O3": "16-bit throughout.",
}

DISABLED = Options(False, "O0", None, False, None, None, 1.0)


def resolve(opt_level: object, overrides: Mapping[str, Any]) -> Options:
    """Return the options of a level with the overrides that are not None.

    Raises:
        ConfigError: an unknown level, a value that cannot be read, or one that the level excludes.
    """
    options = level(opt_level)
    given = {name: _READERS[name](value) for name, value in overrides.items() if value is not None}
    _check(options.opt_level, given)
    return replace(options, **given)


def level(opt_level: object) -> Options:
    """Return the options that a level stands for.

    Raises:
        ConfigError: an unknown level.
    """
    if isinstance(opt_level, str) and opt_level in LEVELS:
        return LEVELS[opt_level]
    text = str(opt_level)
    hint = nearest(text.upper(), LEVELS)
    if text[:1] == "0" or isinstance(opt_level, int):
        hint = f"; the first character is the letter O, not the digit zero: did you mean 'O{text[-1:]}'?"
    raise ConfigError(f"initialize: opt_level must be 'O0', 'O1', 'O2' or 'O3', got {opt_level!r}{hint}")


def report(options: Options) -> str:
    """Return the table of a level's defaults and of what is used."""
    name = options.opt_level
    return "\n".join(
        [
            f"Selected optimization level {name}: {MEANINGS[name]}",
            "Defaults for this optimization level are:",
            *LEVELS[name].lines(),
            "After processing overrides, optimization options are:",
            *options.lines(),
        ]
    )


# -- reading -----------------------------------------------------------------------------------------------------


def _flag(name: str) -> Any:
    def read(value: object) -> bool:
        known = {True: True, False: False, "True": True, "False": False}
        if isinstance(value, (bool, str)) and value in known:
            return known[value]
        raise ConfigError(f"initialize: {name} must be True, False, 'True', 'False' or None, got {value!r}")

    return read


def _dtype(value: object) -> Any:
    if value is False or any(value is dtype for dtype in _DTYPES):
        return value or None
    raise ConfigError(
        f"initialize: cast_model_type must be torch.float32, torch.float16, torch.bfloat16 or None, got {value!r}"
    )


def _scale(value: object) -> float | str:
    if value == "dynamic":
        return "dynamic"
    try:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError
        return float(value)
    except ValueError:
        raise ConfigError(
            f"initialize: loss_scale must be a number, text of a number or 'dynamic', got {value!r}"
        ) from None


_READERS: dict[str, Any] = {
    "cast_model_type": _dtype,
    "patch_torch_functions": _flag("patch_torch_functions"),
    "keep_batchnorm_fp32": _flag("keep_batchnorm_fp32"),
    "master_weights": _flag("master_weights"),
    "loss_scale": _scale,
}


def _check(name: str, given: Mapping[str, Any]) -> None:
    if name == "O1":
        _refuse(given, "keep_batchnorm_fp32", "at O1 no layer is cast and batch norm runs in float32; leave it out")
        _refuse(given, "master_weights", "at O1 the model's own weights are float32; leave it out, or use O2")
    elif given.get("patch_torch_functions"):
        raise ConfigError(f"initialize: patch_torch_functions=True belongs to opt_level='O1', not {name!r}")
    if name == "O0":
        if given.get("cast_model_type") in HALF:
            raise ConfigError("initialize: opt_level='O0' is float32; to cast the model use 'O2' or 'O3'")
        if given.get("master_weights"):
            raise ConfigError(
                "initialize: at O0 the weights are float32 and their own masters; leave master_weights out"
            )


def _refuse(given: Mapping[str, Any], option: str, why: str) -> None:
    if option in given:
        raise ConfigError(f"initialize: {option}={given[option]!r} does not go with opt_level='O1': {why}")
