"""The result of ``amp.step``, read lazily: ignoring it never synchronizes with the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from ..errors import WrongObjectError
from ..names import StepReason
from ..notebook import table_html

APPLIED: Final = "applied"
NON_FINITE: Final = "non_finite"
NO_GRADIENTS: Final = "no_gradients"
ACCUMULATING: Final = "accumulating"
DISCARDED: Final = "discarded"


class StepValues(NamedTuple):
    """The plain values behind a :class:`StepResult`, in its order of fields."""

    applied: bool
    found_inf: bool
    reason: StepReason
    scale: float
    next_scale: float


class StepResult:
    """The outcome of one ``amp.step``.

    Reading a field may synchronize with the device; ignoring it never does. Inside a compiled step
    (``tf.function``, ``jax.jit``) there is nothing to read yet, and a field raises ``StepOrderError``. A result has no
    truth value: ``if amp.step(optimizer)`` raises ``WrongObjectError``.

    Attributes:
        applied: whether the optimizer updated the parameters.
        found_inf: whether a gradient was inf or nan.
        reason: ``"applied"``, ``"non_finite"``, ``"no_gradients"``, ``"accumulating"`` or ``"discarded"``.
        scale: the loss scale that this step's loss was multiplied by.
        next_scale: the loss scale from now on.
    """

    __slots__ = ("_read", "_values")

    def __init__(self, read: Callable[[], StepValues]) -> None:
        self._read = read
        self._values: StepValues | None = None

    @classmethod
    def of(cls, applied: bool, found_inf: bool, reason: StepReason, scale: float, next_scale: float) -> StepResult:
        """Return a result whose values are already known."""
        result = cls.__new__(cls)
        result._values = StepValues(applied, found_inf, reason, scale, next_scale)
        return result

    @property
    def values(self) -> StepValues:
        """All five fields as a named tuple, read from the device on first access."""
        if self._values is None:
            self._values = self._read()
        return self._values

    @property
    def applied(self) -> bool:
        """Whether the optimizer updated the parameters."""
        return self.values.applied

    @property
    def found_inf(self) -> bool:
        """Whether a gradient was inf or nan."""
        return self.values.found_inf

    @property
    def reason(self) -> StepReason:
        """Why the step was applied or not, one word."""
        return self.values.reason

    @property
    def scale(self) -> float:
        """The loss scale that this step used."""
        return self.values.scale

    @property
    def next_scale(self) -> float:
        """The loss scale from now on."""
        return self.values.next_scale

    def __bool__(self) -> bool:
        raise WrongObjectError(
            "a StepResult has no truth value: whether the step was applied is result.applied, and reading it may wait "
            "for the device"
        )

    def __repr__(self) -> str:
        known = self._values._asdict() if self._values else {}
        return f"StepResult({', '.join(f'{name}={value!r}' for name, value in known.items()) or 'not read yet'})"

    def _repr_html_(self) -> str:
        rows = list(self._values._asdict().items()) if self._values else [("not read yet", _UNREAD)]
        return table_html("StepResult", rows)


_UNREAD = "a field reads the values, and may wait for the device"
