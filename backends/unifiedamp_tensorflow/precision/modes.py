"""The two ways in which TensorFlow mixes precision, behind one interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from unifiedamp.backend import PlanRow, Policy, SessionSpec, Support, errors

from .._types import Model
from ..device.selection import DeviceInfo
from .float8_scales import DelayedScaling
from .keras_mode import KerasMode
from .rewrite_mode import RewriteMode

MODES = ("keras", "graph_rewrite")


class Mode(Protocol):
    """What the backend asks of a mode."""

    def scope(self) -> AbstractContextManager[None]:
        """Return the context in which native objects are created."""

    def region(self, enabled: bool, policy: Policy | None) -> tuple[str | None, AbstractContextManager[Any] | None]:
        """Return what layers compute in inside a region, and a context to enter with it."""

    def check_models(self, models: Sequence[Model]) -> None:
        """Refuse models that this mode cannot train; change nothing."""

    def attach(self, models: Sequence[Model]) -> None:
        """Prepare the models' layers."""

    def detach(self) -> None:
        """Undo :meth:`attach`."""

    def around_call(self) -> Callable[[], AbstractContextManager[Any]] | None:
        """Return what makes a context for each compiled call; None where none is needed."""

    def check_xla(self) -> None:
        """Refuse XLA where this mode excludes it."""

    def on_eager_backward(self) -> None:
        """Called after each eager backward."""

    def explain(self) -> list[PlanRow]:
        """Return the mode's rows of the plan."""

    def op_overrides(self) -> Support:
        """Return whether ``Policy.op_overrides`` works."""


def make_mode(spec: SessionSpec, device: DeviceInfo, scaling: DelayedScaling) -> Mode:
    """Return the mode that ``backend_options.tensorflow.mode`` names.

    Raises:
        ConfigError: there is no such mode.
    """
    mode = spec.options.get("mode", "keras")
    if mode not in MODES:
        hint = errors.nearest(str(mode), MODES)
        raise errors.ConfigError(
            f"backend_options.tensorflow.mode must be one of {', '.join(MODES)}, got {mode!r}{hint}"
        )
    return KerasMode(spec, device, scaling) if mode == "keras" else RewriteMode(spec, device)
