"""Checks of single arguments of ``Amp`` and of its methods."""

from __future__ import annotations

from collections.abc import Iterable

from ..backend.capabilities import ARRAY_DTYPES, COMPILE_MODES
from ..errors import ConfigError, WrongObjectError, nearest


def check_accumulate_steps(value: object) -> int:
    """Return the number of micro-batches per optimizer step.

    Raises:
        ConfigError: not a whole number of at least 1.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"accumulate_steps must be a whole number of at least 1, got {value!r}")
    return value


def check_compile_mode(mode: object, what: str) -> str:
    """Return a mode of ``amp.compile``.

    Raises:
        ConfigError: not one of ``COMPILE_MODES``; the message begins with ``what``.
    """
    if not isinstance(mode, str) or mode not in COMPILE_MODES:
        raise ConfigError(
            f"{what} must be one of {', '.join(COMPILE_MODES)}, got {mode!r}{nearest(str(mode), COMPILE_MODES)}"
        )
    return mode


def check_array_dtype(dtype: object) -> str | None:
    """Return a dtype that ``amp.to_native`` takes.

    Raises:
        ConfigError: not one of ``ARRAY_DTYPES``, nor None.
    """
    if dtype is None or (isinstance(dtype, str) and dtype in ARRAY_DTYPES):
        return dtype
    raise ConfigError(f"amp.to_native: dtype must be one of {', '.join(ARRAY_DTYPES)} or None, got {dtype!r}")


def check_prefetch(batches: object, size: object) -> None:
    """Refuse what ``amp.prefetch`` cannot take.

    Raises:
        ConfigError: ``size`` is not a whole number of at least 1.
        WrongObjectError: ``batches`` cannot be iterated over.
    """
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ConfigError(f"amp.prefetch: size must be a whole number of at least 1, got {size!r}")
    if not isinstance(batches, Iterable):
        raise WrongObjectError(f"amp.prefetch takes an iterable of batches, got {type(batches).__name__}")


def check_closure(closure: object) -> None:
    """Refuse what ``amp.backward`` cannot call.

    Raises:
        WrongObjectError: a loss, most likely; with what to do.
    """
    if not callable(closure):
        raise WrongObjectError(
            f"amp.backward takes a function that computes the loss, got {type(closure).__name__}: write amp.backward("
            "lambda: loss_fn(model(x), y), optimizer), or differentiate a loss that was computed inside amp.autocast() "
            "by 'with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()'"
        )


def check_flag(value: object, what: str) -> None:
    """Refuse what is not a bool.

    Raises:
        ConfigError: the message begins with ``what``.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{what} must be true or false, got {value!r}")


def check_positive(value: object, what: str) -> None:
    """Refuse a limit that is not positive.

    Raises:
        ConfigError: not a positive number; the message begins with ``what``.
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
        raise ConfigError(f"{what} must be a positive number, got {value!r}")


def parse_setting(text: str) -> object:
    """Return a setting's value from a command line: true, false, a number, or else the text."""
    known = {"true": True, "false": False}
    if text.lower() in known:
        return known[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
