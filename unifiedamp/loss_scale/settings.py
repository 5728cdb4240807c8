"""The settings of a loss scale: none, static or dynamic."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, get_args

from ..errors import ConfigError, shown
from ..notebook import table_html
from . import transition
from .state import FLOAT32_MAX, ScaleState, float32

HysteresisReset = Literal["good_step", "growth"]
HYSTERESIS_RESETS: tuple[str, ...] = get_args(HysteresisReset)


@dataclass(frozen=True)
class LossScale:
    """Base of the three settings. Subclasses are frozen values that compare by their fields.

    Every subclass answers to the same names (``growth_factor``, ``min_scale``, …), so that a backend needs no ``if``:
    a static scale is a dynamic one whose factors are 1.
    """

    kind: ClassVar[str] = ""
    enabled: ClassVar[bool] = True
    # Without annotations, so that these are plain class attributes and no dataclass fields.
    growth_factor = 1.0
    backoff_factor = 1.0
    growth_interval = 2**31 - 1
    hysteresis = 1
    hysteresis_reset = "good_step"
    max_consecutive_skips = 50

    @property
    def first_scale(self) -> float:
        """The scale that training starts with."""
        return 1.0

    @property
    def scale_bounds(self) -> tuple[float, float]:
        """Smallest and largest value that the scale can take."""
        return (self.first_scale, self.first_scale)

    @property
    def keeps_hysteresis(self) -> bool:
        """Whether the state needs ``hysteresis_steps``: overflows before a finite iteration still count."""
        return transition.keeps_hysteresis(self)

    def initial_state(self) -> ScaleState:
        """Return the state before the first step."""
        return ScaleState(scale=float32(self.first_scale))

    def next_state(self, state: ScaleState, found_inf: bool) -> ScaleState:
        """Return the state after one iteration, by :mod:`.transition`: the reference for every backend."""
        return transition.next_state(self, state, found_inf)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, with the ``kind`` that ``parse_loss_scale`` reads back."""
        return {"kind": self.kind, **asdict(self)}

    def _repr_html_(self) -> str:
        return table_html(type(self).__name__, self.to_dict().items())

    def __str__(self) -> str:
        """Return the text that ``parse_loss_scale`` reads back, changed fields only."""
        changed = [f"{f.name}={getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name) != f.default]
        return f"{self.kind}({','.join(changed)})" if changed else self.kind


@dataclass(frozen=True)
class NoLossScale(LossScale):
    """No scaling and no finite check: for float32 and bfloat16, whose exponent range needs none. Costs nothing."""

    kind: ClassVar[str] = "none"
    enabled: ClassVar[bool] = False

    def next_state(self, state: ScaleState, found_inf: bool) -> ScaleState:
        """Return ``state`` unchanged."""
        return state


@dataclass(frozen=True)
class StaticLossScale(LossScale):
    """A fixed scale. Steps with non-finite gradients are skipped; the scale never changes.

    Args:
        scale: the factor, positive and finite.
        max_consecutive_skips: skips in a row after which ``LossScaleExhausted`` is raised.
    """

    scale: float = 2.0**15
    max_consecutive_skips: int = 50
    kind: ClassVar[str] = "static"

    def __post_init__(self) -> None:
        _require_finite_positive(self, "scale")
        _require_count(self, "max_consecutive_skips")

    @property
    def first_scale(self) -> float:
        """The fixed scale."""
        return self.scale


@dataclass(frozen=True)
class DynamicLossScale(LossScale):
    """A scale that halves after non-finite gradients and doubles after a run of finite ones.

    Args:
        initial_scale: the scale of the first step.
        growth_factor: what the scale is multiplied by after ``growth_interval`` finite iterations; above 1.
        backoff_factor: what it is multiplied by after a non-finite one; between 0 and 1.
        growth_interval: finite iterations in a row before it grows.
        min_scale: bounds, inclusive; the scale never reaches 0 or inf.
        hysteresis: non-finite iterations that it takes to back off (and again on each one after).
        max_consecutive_skips: skips in a row after which ``LossScaleExhausted`` is raised.
        hysteresis_reset: what starts their count again: ``"good_step"``, a finite iteration, so that they must come in
            a row; or ``"growth"``, a growth of the scale, as in Megatron-LM and by default in DeepSpeed.

    Raises:
        ConfigError: a value is out of range; the message names it.
    """

    initial_scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    min_scale: float = 2.0**-14
    max_scale: float = 2.0**24
    hysteresis: int = 1
    max_consecutive_skips: int = 50
    hysteresis_reset: HysteresisReset = "good_step"
    kind: ClassVar[str] = "dynamic"

    def __post_init__(self) -> None:
        for name in ("initial_scale", "growth_factor", "backoff_factor", "min_scale", "max_scale"):
            _require_finite_positive(self, name)
        for name in ("growth_interval", "hysteresis", "max_consecutive_skips"):
            _require_count(self, name)
        if self.hysteresis_reset not in HYSTERESIS_RESETS:
            raise ConfigError(
                "DynamicLossScale: hysteresis_reset must be 'good_step' or 'growth', got "
                f"{shown(self.hysteresis_reset)}"
            )
        if self.growth_factor <= 1.0:
            raise ConfigError(f"DynamicLossScale: growth_factor must be above 1, got {self.growth_factor!r}")
        if self.backoff_factor >= 1.0:
            raise ConfigError(f"DynamicLossScale: backoff_factor must be below 1, got {self.backoff_factor!r}")
        if not self.min_scale <= self.initial_scale <= self.max_scale:
            raise ConfigError(
                f"DynamicLossScale: initial_scale {self.initial_scale!r} lies outside "
                f"[min_scale, max_scale] = [{self.min_scale!r}, {self.max_scale!r}]"
            )

    @property
    def first_scale(self) -> float:
        """The initial scale."""
        return self.initial_scale

    @property
    def scale_bounds(self) -> tuple[float, float]:
        """``(min_scale, max_scale)``."""
        return (self.min_scale, self.max_scale)


def _require_finite_positive(setting: LossScale, name: str) -> None:
    value = getattr(setting, name)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 < value <= FLOAT32_MAX or float32(value) == 0:
        raise ConfigError(
            f"{type(setting).__name__}: {name} must be a positive number that float32 can hold, got {shown(value)}"
        )
    object.__setattr__(setting, name, float(value))


def _require_count(setting: LossScale, name: str) -> None:
    value = getattr(setting, name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
        raise ConfigError(
            f"{type(setting).__name__}: {name} must be a whole number from 1 to 2**31 - 1, got {shown(value)}"
        )


KINDS: dict[str, type[LossScale]] = {cls.kind: cls for cls in (NoLossScale, StaticLossScale, DynamicLossScale)}
