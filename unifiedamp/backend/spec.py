"""The settings that a session passes to its backend."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .. import errors
from ..errors import AmpWarning
from ..loss_scale import LossScale
from ..policy import Float8Recipe, Policy, PolicySchedule
from .tuning import Tuning


@dataclass
class SessionSpec:
    """What a session asks of its backend; resolved by core, read by the backend.

    Attributes:
        policy: the precision policy in force, overrides included.
        loss_scale: the loss scale in force (never None).
        accumulate_steps: micro-batches per optimizer step; a scaled loss is divided by it.
        device: the requested device, or None for the framework's best.
        strict: turn warnings into errors.
        options: ``backend_options`` of this backend, its own to check.
        compile_mode: the default mode of ``amp.compile``, one of :data:`COMPILE_MODES`.
        master_weights: optimizers train float32 copies of the 16-bit parameters; asked for only where the capability
            of that name is declared.
        reduce_dtype: the dtype in which gradients are summed between ranks, replicas or contexts; None leaves it to the
            framework. Asked for only where the capability of that name is declared.
        schedule: all policies of the session; None where it has one. Given only where the backend is a
            ``PolicySwitcher``.
        tuning: the items of ``Tuning`` asked for. Core warns of those that the backend does not declare.
    """

    policy: Policy
    loss_scale: LossScale
    accumulate_steps: int = 1
    device: str | None = None
    strict: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    compile_mode: str = "default"
    master_weights: bool = False
    tuning: Tuning = field(default_factory=Tuning)
    reduce_dtype: str | None = None
    schedule: PolicySchedule | None = None
    warned: set[str] = field(default_factory=set, repr=False)

    @property
    def policies(self) -> tuple[Policy, ...]:
        """All policies of the session, in the order of its schedule."""
        return (self.policy,) if self.schedule is None else tuple(dict.fromkeys(self.schedule.policies))

    @property
    def delayed_recipe(self) -> Float8Recipe | None:
        """The float8 recipe of delayed scaling among the policies; None where there is none.

        Raises:
            UnsupportedError: policies of the schedule have different ones.
        """
        float8 = [policy.float8 for policy in self.policies if policy.compute_dtype == "float8"]
        found = list(dict.fromkeys(recipe for recipe in float8 if recipe.scaling == "delayed"))
        if len(found) > 1:
            raise errors.UnsupportedError(
                f"schedule={str(self.schedule)!r}: a session keeps one kind of amax history, and the policies ask for "
                f"{' and '.join(repr(str(recipe)) for recipe in found)}; give them the same amax_history and margin"
            )
        return found[0] if found else None

    def under(self, policy: Policy) -> SessionSpec:
        """Return the same with another policy; warnings are given once for both."""
        return self if policy == self.policy else replace(self, policy=policy)

    def warn(self, message: str, category: type[AmpWarning]) -> None:
        """Warn once per session; under ``strict`` raise the warning's error class instead."""
        if self.strict:
            raise category.error_class(message)
        if message not in self.warned:
            self.warned.add(message)
            warnings.warn(message, category, stacklevel=4)

    def check_options(self, known: Iterable[str], backend: str) -> None:
        """Refuse a ``backend_options`` key that the backend does not know, naming the nearest.

        Raises:
            ConfigError: an unknown key.
        """
        names = list(known)
        for key in self.options:
            if key not in names:
                hint = errors.nearest(key, names)
                raise errors.ConfigError(
                    f"backend_options.{backend} has no setting {key!r}{hint} (it has: {', '.join(names) or 'none'})"
                )
