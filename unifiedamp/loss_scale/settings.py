"""The settings of a loss scale: none, static or dynamic."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Literal, NamedTuple, get_args

from ..errors import ConfigError, shown
from ..notebook import table_html
from . import transition
from .state import FLOAT32_MAX, ScaleState, float32

HysteresisReset = Literal["good_step", "growth"]
HYSTERESIS_RESETS: tuple[str, ...] = get_args(HysteresisReset)


class Setting(NamedTuple):
    """What a setting of a loss scale takes: its check, its text and its JSON schema follow from this.

    Attributes:
        meaning: one sentence.
        kind: ``"number"``, positive, that float32 can hold; ``"count"``, a whole number from 1; or ``"word"``.
        above: numbers are above this.
        below: numbers are below this.
        words: the words.
    """

    meaning: str
    kind: str = "number"
    above: float = 0
    below: float = math.inf
    words: tuple[str, ...] = ()


def _takes(*what: Any, **more: Any) -> dict[str, Setting]:
    """Return the metadata of a field; the arguments are those of :class:`Setting`."""
    return {"setting": Setting(*what, **more)}


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

    @classmethod
    def settings(cls) -> dict[str, Setting]:
        """Return name → what it takes, for each field."""
        return {each.name: each.metadata["setting"] for each in fields(cls)}

    def __post_init__(self) -> None:
        for name, setting in self.settings().items():
            _CHECKS[setting.kind](self, name, setting)

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

    def within(self, state: ScaleState) -> ScaleState:
        """Return the nearest state that these settings can reach, of one that was saved under others."""
        return transition.within(self, state)

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


_SKIPS = "Skipped steps in a row after which training stops with LossScaleExhausted."


@dataclass(frozen=True)
class StaticLossScale(LossScale):
    """A fixed scale. Steps with non-finite gradients are skipped; the scale never changes.

    Args:
        scale: the factor, positive and finite.
        max_consecutive_skips: skips in a row after which ``LossScaleExhausted`` is raised.
    """

    scale: float = field(default=2.0**15, metadata=_takes("The fixed scale."))
    max_consecutive_skips: int = field(default=50, metadata=_takes(_SKIPS, "count"))
    kind: ClassVar[str] = "static"

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

    initial_scale: float = field(
        default=2.0**16, metadata=_takes("The scale of the first step; from min_scale to max_scale.")
    )
    growth_factor: float = field(
        default=2.0, metadata=_takes("What the scale is multiplied by when it grows.", above=1)
    )
    backoff_factor: float = field(
        default=0.5, metadata=_takes("What the scale is multiplied by after gradients with inf or nan.", below=1)
    )
    growth_interval: int = field(
        default=2000, metadata=_takes("Finite iterations in a row before the scale grows.", "count")
    )
    min_scale: float = field(default=2.0**-14, metadata=_takes("The smallest scale."))
    max_scale: float = field(default=2.0**24, metadata=_takes("The largest scale."))
    hysteresis: int = field(default=1, metadata=_takes("Non-finite iterations before the scale is reduced.", "count"))
    max_consecutive_skips: int = field(default=50, metadata=_takes(_SKIPS, "count"))
    hysteresis_reset: HysteresisReset = field(
        default="good_step",
        metadata=_takes(
            "What starts the count of hysteresis again: a finite iteration, or a growth of the scale.",
            "word",
            words=HYSTERESIS_RESETS,
        ),
    )
    kind: ClassVar[str] = "dynamic"

    def __post_init__(self) -> None:
        super().__post_init__()
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


def _require_number(given: LossScale, name: str, setting: Setting) -> None:
    value = getattr(given, name)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 < value <= FLOAT32_MAX or float32(value) == 0:
        raise _wrong(given, name, "a positive number that float32 can hold", value)
    object.__setattr__(given, name, float(value))
    if not value > setting.above:
        raise _wrong(given, name, f"above {setting.above:g}", float(value))
    if not value < setting.below:
        raise _wrong(given, name, f"below {setting.below:g}", float(value))


def _require_count(given: LossScale, name: str, _setting: Setting) -> None:
    value = getattr(given, name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
        raise _wrong(given, name, "a whole number from 1 to 2**31 - 1", value)


def _require_word(given: LossScale, name: str, setting: Setting) -> None:
    value = getattr(given, name)
    if value not in setting.words:
        raise _wrong(given, name, " or ".join(map(repr, setting.words)), value)


def _wrong(given: LossScale, name: str, wanted: str, value: object) -> ConfigError:
    return ConfigError(f"{type(given).__name__}: {name} must be {wanted}, got {shown(value)}")


_CHECKS = {"number": _require_number, "count": _require_count, "word": _require_word}

KINDS: dict[str, type[LossScale]] = {cls.kind: cls for cls in (NoLossScale, StaticLossScale, DynamicLossScale)}
