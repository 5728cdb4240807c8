"""Loss-scale settings and the one reference transition that every backend is held against.

State: ``scale`` (a float32 value) and ``good_steps``. Once per iteration, when the gradients are complete::

    some gradient not finite:  bad_steps += 1; good_steps = 0
                               if bad_steps >= hysteresis: scale = max(min_scale, scale * backoff_factor)
    all finite:                bad_steps = 0; good_steps += 1
                               if good_steps == growth_interval:
                                   good_steps = 0; scale = min(max_scale, scale * growth_factor)

This is the algorithm of Micikevicius et al., "Mixed Precision Training" (ICLR 2018), section 3.2, with the bounds and
the hysteresis that today's frameworks lack. Everything here is plain Python and pure.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar

from ..errors import ConfigError, nearest, shown

FLOAT32_MAX = 3.4028234663852886e38


def float32(value: float) -> float:
    """Round ``value`` to the nearest float32 (ties to even), as a Python float; overflow gives inf."""
    if abs(value) > FLOAT32_MAX:
        return math.copysign(math.inf, value)
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


@dataclass(frozen=True)
class ScaleState:
    """What moves during training: plain numbers, the same on every backend.

    Attributes:
        scale: the factor that the next loss is multiplied by (a float32 value).
        good_steps: finite iterations since the last growth or skip.
        bad_steps: non-finite iterations in a row, up to now.
        applied_steps: optimizer steps applied since training began, over all optimizers.
        skipped_steps: optimizer steps skipped for non-finite gradients, over all optimizers.
    """

    scale: float = 1.0
    good_steps: int = 0
    bad_steps: int = 0
    applied_steps: int = 0
    skipped_steps: int = 0


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
    max_consecutive_skips = 50

    @property
    def first_scale(self) -> float:
        """The scale that training starts with."""
        return 1.0

    @property
    def scale_bounds(self) -> tuple[float, float]:
        """Smallest and largest value that the scale can take."""
        return (self.first_scale, self.first_scale)

    def initial_state(self) -> ScaleState:
        """Return the state before the first step."""
        return ScaleState(scale=float32(self.first_scale))

    def next_state(self, state: ScaleState, found_inf: bool) -> ScaleState:
        """Return the state after one iteration; pure, and the reference for every backend.

        Counts of applied and skipped steps are not touched: several optimizers may share one iteration.
        """
        if found_inf:
            bad = state.bad_steps + 1
            scale = state.scale
            if bad >= self.hysteresis:
                scale = max(float32(self.scale_bounds[0]), float32(scale * self.backoff_factor))
            return replace(state, scale=scale, good_steps=0, bad_steps=bad)
        good = state.good_steps + 1
        if good < self.growth_interval:
            return replace(state, good_steps=good, bad_steps=0)
        scale = min(float32(self.scale_bounds[1]), float32(state.scale * self.growth_factor))
        return replace(state, scale=scale, good_steps=0, bad_steps=0)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, with the ``kind`` that :func:`parse_loss_scale` reads back."""
        return {"kind": self.kind, **asdict(self)}

    def __str__(self) -> str:
        """Return the text that :func:`parse_loss_scale` reads back, changed fields only."""
        changed = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default]
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
    """A fixed scale. Steps with non-finite gradients are skipped; the scale never moves.

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
        min_scale, max_scale: bounds, inclusive; the scale never reaches 0 or inf.
        hysteresis: non-finite iterations in a row that it takes to back off (and again on each one after).
        max_consecutive_skips: skips in a row after which ``LossScaleExhausted`` is raised.

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
    kind: ClassVar[str] = "dynamic"

    def __post_init__(self) -> None:
        for name in ("initial_scale", "growth_factor", "backoff_factor", "min_scale", "max_scale"):
            _require_finite_positive(self, name)
        for name in ("growth_interval", "hysteresis", "max_consecutive_skips"):
            _require_count(self, name)
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


def parse_loss_scale(value: object) -> LossScale:
    """Read a loss scale from what people write.

    Args:
        value: a ``LossScale``; a positive number (static); ``"dynamic"``, ``"none"``, ``"static(scale=128.0)"``; or a
            mapping of a ``kind`` and the fields of that kind (``kind`` is ``dynamic`` when left out).

    Raises:
        ConfigError: the value has no meaning as a loss scale; the message names the nearest key.
    """
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
        options[key.strip()] = _number(number.strip(), text)
    return _from_mapping(options)


def _number(text: str, whole: str) -> int | float:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    raise ConfigError(f"loss scale {whole!r}: {text!r} is not a number")
