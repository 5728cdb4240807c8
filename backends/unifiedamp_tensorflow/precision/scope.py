"""The two ways TensorFlow mixes precision, behind one small interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from unifiedamp.backend import PlanRow, Policy, SessionSpec, Support, errors

from ..device.devices import Device

MODES = ("keras", "graph_rewrite")


class Mode(Protocol):
    """What the backend asks of a mode."""

    def scope(self) -> AbstractContextManager[None]:
        """Return the context that native objects are made in."""

    def region(self, enabled: bool, policy: Policy | None) -> tuple[str | None, AbstractContextManager[Any] | None]:
        """Return what layers compute in inside a region, and a context to hold around it."""

    def check_models(self, models: Sequence[Any]) -> None:
        """Refuse models that this mode cannot train; change nothing."""

    def attach(self, models: Sequence[Any]) -> None:
        """Set the models' layers up."""

    def detach(self) -> None:
        """Take that back."""

    def around_call(self) -> Callable[[], AbstractContextManager[Any]] | None:
        """Return what makes a context for each compiled call."""

    def check_xla(self) -> None:
        """Refuse XLA where it does not go with this mode."""

    def on_eager_backward(self) -> None:
        """A backward ran eagerly."""

    def explain(self) -> list[PlanRow]:
        """Return the mode's rows of the plan."""

    def op_overrides(self) -> Support:
        """Tell whether ``Policy.op_overrides`` works."""


def make_mode(spec: SessionSpec, device: Device) -> Mode:
    """Return the mode that ``backend_options.tensorflow.mode`` names.

    Raises:
        ConfigError: there is none of that name.
    """
    mode = spec.options.get("mode", "keras")
    if mode not in MODES:
        hint = errors.nearest(str(mode), MODES)
        raise errors.ConfigError(
            f"backend_options.tensorflow.mode must be one of {', '.join(MODES)}, got {mode!r}{hint}"
        )
    if mode == "keras":
        from .keras_mode import KerasMode

        return KerasMode(spec, device)
    from .rewrite import RewriteMode

    return RewriteMode(spec, device)
