"""The settings that a session passes to its backend."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import errors
from ..errors import AmpWarning
from ..loss_scale import LossScale
from ..policy import PRODUCTS, Float8Recipe, Policy
from .tuning import Tuning


@dataclass
class SessionSpec:
    """What a session asks of its backend; resolved by core, read by the backend.

    Attributes:
        policy: the precision policy, overrides included.
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
    warned: set[str] = field(default_factory=set, repr=False)

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

    def check_tensorwise(self, framework: str) -> None:
        """Refuse a float8 recipe on a backend that emulates ``recipe="tensorwise"`` alone.

        Raises:
            PolicyNotSupportedError: another recipe, or a product in bfloat16; with the nearest policy that runs.
        """
        policy, default = self.policy, Float8Recipe()
        if policy.compute_dtype == "float8" and policy.float8 != default:
            products = {name: getattr(default, name) for name in PRODUCTS}
            nearest = policy.replace(
                recipe=default.name, amax_history=default.amax_history, margin=0, emulate=True, **products
            )
            raise errors.PolicyNotSupportedError(
                f"policy {str(policy)!r}: on {framework}, float8 is emulated by recipe 'tensorwise' alone, with all "
                f"products in float8; nearest that runs: {str(nearest)!r}"
            )
