"""Every error and warning that unifiedamp raises on purpose.

All errors derive from :class:`AmpError`. A message says what was wrong, with which object, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING


class AmpError(Exception):
    """Base class of every error that unifiedamp raises on purpose."""

    # Not a builtin base's: what re-raises errors of rewritten code keeps the classes whose constructor this is.
    if not TYPE_CHECKING:
        __init__ = Exception.__init__


class ConfigError(AmpError, ValueError):
    """An argument, configuration file or environment variable cannot be understood."""


class BackendNotFoundError(ConfigError):
    """No backend plugin of that name is registered."""


class BackendUnavailableError(AmpError, ImportError):
    """The backend is known, but its framework (or the plugin) is missing or fails to import."""


class PolicyError(ConfigError):
    """A precision policy is unknown, ambiguous or contradicts itself."""


class PolicyNotSupportedError(PolicyError):
    """The policy is well formed but cannot run on this backend and device."""


class UnsupportedError(AmpError, NotImplementedError):
    """The backend does not have this feature; its capabilities say so, with the reason."""


class WrongObjectError(AmpError, TypeError):
    """An object of the wrong type was handed in (a list where a model is wanted, another framework's optimizer)."""


class PrepareError(AmpError, ValueError):
    """A model or optimizer would fail later in training, found by ``amp.prepare``."""


class ParamDtypeError(PrepareError):
    """Trainable parameters have a dtype the policy cannot train (float16 parameters under a loss scaler)."""


class StepOrderError(AmpError, RuntimeError):
    """Calls of one iteration came in an order that has no meaning (``step`` without ``backward`` and the like)."""


class LossError(AmpError, ValueError):
    """The loss cannot be scaled and differentiated: it is not a scalar, or not connected to the parameters."""


class CheckpointError(AmpError, ValueError):
    """A checkpoint or state dictionary is truncated, foreign, from a newer version, or does not fit this session."""


class ProcessLostError(AmpError, RuntimeError):
    """Of several processes that train together, another one has ended; this one cannot go on without it."""


class LossScaleExhausted(AmpError, ArithmeticError):
    """Too many steps in a row were skipped: no loss scale can fix this.

    Attributes:
        skips: skipped steps in a row.
        scale: the loss scale when training stopped.
        tensors: names of the gradients that were non-finite in the last report, first ones first.
        loss_was_finite: whether the unscaled loss itself was finite then; None when not known.
    """

    def __init__(
        self, message: str, *, skips: int, scale: float, tensors: tuple[str, ...], loss_was_finite: bool | None
    ) -> None:
        super().__init__(message)
        self.skips = skips
        self.scale = scale
        self.tensors = tensors
        self.loss_was_finite = loss_was_finite


class AmpWarning(UserWarning):
    """Base class of unifiedamp's warnings; ``Amp(strict=True)`` turns each into its ``error_class``."""

    error_class: type[AmpError] = AmpError


class PolicyWarning(AmpWarning):
    """The policy runs here but cannot help, or part of it has no effect."""

    error_class = PolicyNotSupportedError


class NoGainWarning(PolicyWarning):
    """The policy runs here but is not faster than float32 on this device."""


class CompileWarning(AmpWarning):
    """A compiled step runs slower than it could (uncaptured, retraced at every call); the message says why."""

    error_class = UnsupportedError


class TuningWarning(AmpWarning):
    """An item of ``Tuning`` has no effect here, or something left on undoes what tuning gains; the message says why."""

    error_class = UnsupportedError


class StateWarning(AmpWarning):
    """Loaded state disagrees with the session's settings; the message says which value is used."""

    error_class = CheckpointError


class StepWarning(AmpWarning):
    """A step could not be applied for a reason that is usually a mistake (no gradients)."""

    error_class = StepOrderError


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``", did you mean 'x'?"`` for the closest of ``known``, or an empty string."""
    close = get_close_matches(str(word), list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def shown(value: object, limit: int = 200) -> str:
    """Return a value as a message shows it: its ``repr``, cut off where it is long."""
    try:
        text = repr(value)
    except Exception:  # a number of too many digits, or an object that is broken itself
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= limit else f"{text[:limit]}…"


def first_names(names: Iterable[str], limit: int = 5) -> str:
    """Return the first names quoted and joined, with a count of those left out."""
    all_names = list(names)
    shown = ", ".join(repr(name) for name in all_names[:limit])
    left = len(all_names) - limit
    return f"{shown} and {left} more" if left > 0 else shown
