"""``Tuning``: what goes with mixed precision to make training fast, item by item; off by default."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError, nearest
from ..plain_values import plain
from .capabilities import TUNING, PlanRow, Support

PRESETS = ("off", "fast")


@dataclass(frozen=True)
class Tuning:
    """Speed settings of a session; an immutable value. ``amp.explain()`` says what each becomes.

    Attributes:
        channels_last: convolutional models in the layout that Tensor Cores want.
        tf32: TensorFloat-32 for the matrix products that remain in float32, while the session computes.
        cudnn_benchmark: make cuDNN try its algorithms on each new shape, while the session computes.
        fused_optimizer: the optimizer's update in one kernel for many parameters.
        set_to_none: gradients are released after a step, not filled with zeros.
        compile: ``amp.compile`` in mode "max", unless ``Amp(compile=...)`` names another mode than "default".
        checkpoint_layers: globs over layer paths; matching layers recompute their activations in the backward pass.
            Saves memory and costs time.
        best_effort: an unsupported item appears in ``amp.explain()`` only; otherwise each such item gets a warning, an
            error under ``strict=True``.

    Raises:
        ConfigError: a value of the wrong type.
    """

    channels_last: bool = False
    tf32: bool = False
    cudnn_benchmark: bool = False
    fused_optimizer: bool = False
    set_to_none: bool = False
    compile: bool = False
    checkpoint_layers: tuple[str, ...] = ()
    best_effort: bool = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "checkpoint_layers":
                object.__setattr__(self, field.name, _globs(value))
            elif not isinstance(value, bool):
                raise ConfigError(f"tuning.{field.name} must be true or false, got {value!r}")

    @classmethod
    def of(cls, value: object) -> Tuning:
        """Return the tuning that an argument or a configuration describes.

        Args:
            value: a ``Tuning``; None or "off"; "fast" (every item but ``checkpoint_layers``, by best effort); or a
                mapping of items, in which ``preset = "fast"`` gives what is left out.

        Raises:
            ConfigError: an unknown preset or item, with the nearest right one, or a value of the wrong type.
        """
        value = plain(value, "tuning")
        if value is None or isinstance(value, Tuning):
            return value or cls()
        if isinstance(value, str):
            return cls._preset(value)
        if not isinstance(value, Mapping):
            raise ConfigError(f"tuning must be a Tuning, 'fast', 'off' or a mapping of its items, got {value!r}")
        items = dict(value)
        base = cls._preset(items.pop("preset", "off"))
        return base.replace(**{str(name): item for name, item in items.items()})

    @classmethod
    def _preset(cls, name: object) -> Tuning:
        if name == "off":
            return cls()
        if name == "fast":
            on: dict[str, Any] = dict.fromkeys([item for item in TUNING if item != "checkpoint_layers"], True)
            return cls(**on, best_effort=True)
        raise ConfigError(f"tuning {name!r} is none of {', '.join(PRESETS)}{nearest(str(name), PRESETS)}")

    def replace(self, **changes: Any) -> Tuning:
        """Return the same with other items.

        Raises:
            ConfigError: an unknown item, with the nearest right one, or a value of the wrong type.
        """
        known = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                raise ConfigError(f"tuning has no item {name!r}{nearest(name, known)} (it has: {', '.join(known)})")
        return dataclasses.replace(self, **changes)

    def asked(self) -> dict[str, str]:
        """Return the requested items, each with its value as text."""
        found = {name: getattr(self, name) for name in TUNING}
        return {name: "on" if value is True else ", ".join(value) for name, value in found.items() if value}

    def __bool__(self) -> bool:
        return bool(self.asked())

    def __str__(self) -> str:
        parts = [name if value == "on" else f"{name}={value}" for name, value in self.asked().items()]
        return ", ".join([*parts, *(["best_effort"] if parts and self.best_effort else [])]) or "off"


def _globs(value: object) -> tuple[str, ...]:
    value = plain(value, "tuning.checkpoint_layers")
    if isinstance(value, (list, tuple)) and all(isinstance(glob, str) and glob for glob in value):
        return tuple(value)
    raise ConfigError(f"tuning.checkpoint_layers must be a list of globs such as ('encoder.*',), got {value!r}")


def compile_mode(asked: str, tuning: Tuning) -> str:
    """Return the mode of ``amp.compile`` that a session's arguments give."""
    return "max" if tuning.compile and asked == "default" else asked


# -- rows that a backend makes -----------------------------------------------------------------------------------------


def item_rows(tuning: Tuning, support: Mapping[str, Support], notes: Mapping[str, tuple[str, str]]) -> list[PlanRow]:
    """Return a row for each requested item that is supported here.

    Args:
        tuning: the session's.
        support: item → whether it is there; the reason names the native call.
        notes: item → effect and note of its row.
    """
    return [
        PlanRow(f"tuning.{item}", value, support[item].reason, *notes[item])
        for item, value in tuning.asked().items()
        if support[item]
    ]


def bias_rows(layers: Sequence[str], remedy: str, order: str) -> list[PlanRow]:
    """Return a row that names layers whose bias the batch norm behind them takes away; none where there are none.

    Args:
        layers: their paths.
        remedy: how the framework makes such a layer without a bias.
        order: which order of layers showed that a norm follows the layer.
    """
    if not layers:
        return []
    note = f"the norm subtracts it again: {remedy} (not changed; told by {order} order)"
    return [PlanRow("tuning.bias_before_norm", ", ".join(layers), "none", "no effect", note)]


def compile_note(mode: str) -> tuple[str, str]:
    """Return effect and note of the item ``compile`` where the session compiles in another mode than "max"."""
    return "no effect", f"no effect here: Amp(compile={mode!r}) was asked for"
