"""``backend_options.mxnet``, and the arguments of ``hybridize`` that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unifiedamp.backend import Policy, SessionSpec, errors

FLAGS: Mapping[str, bool | int] = {"static_alloc": True, "static_shape": True, "inline_limit": 2}
"""What ``hybridize`` is called with, unless ``backend_options.mxnet`` says otherwise."""

BULK = 64
"""Operators that mode "max" hands to the engine at once; MXNet's own number is 15."""

OPTIONS: Mapping[str, type] = {
    "static_alloc": bool,
    "static_shape": bool,
    "inline_limit": int,
    "forward_bulk_size": int,
    "backward_bulk_size": int,
    "layout_optimization": bool,
    "emulate": bool,
}
"""What ``backend_options.mxnet`` may hold: true or false, or a number of operators."""

NOT_HYBRIDIZE = ("layout_optimization", "emulate")
"""Those of them that are no arguments of ``hybridize``."""


def check_options(spec: SessionSpec) -> None:
    """Check ``backend_options.mxnet``.

    Raises:
        ConfigError: an unknown setting, or a value of the wrong type.
    """
    spec.check_options(OPTIONS, "mxnet")
    for name, value in spec.options.items():
        wanted = "true or false" if OPTIONS[name] is bool else "a whole number of at least 0"
        found = type(value)
        if found is not OPTIONS[name] or value < 0:
            raise errors.ConfigError(f"backend_options.mxnet.{name} must be {wanted}, got {value!r}")


def hybridize_flags(options: Mapping[str, Any], mode: str) -> dict[str, bool | int]:
    """Return the arguments of ``hybridize``."""
    bulk = {"forward_bulk_size": BULK, "backward_bulk_size": BULK} if mode == "max" else {}
    given = {key: value for key, value in options.items() if key in OPTIONS and key not in NOT_HYBRIDIZE}
    return {**FLAGS, **bulk, **given}


def hybridize_call(options: Mapping[str, Any], mode: str, bulk: bool) -> str:
    """Return the native calls of ``amp.compile`` as text; ``bulk`` adds that of mode "max"."""
    flags = ", ".join(f"{key}={value}" for key, value in hybridize_flags(options, mode).items())
    return f"block.hybridize({flags})" + (f", mx.engine.bulk({BULK})" if bulk else "")


def with_emulation(spec: SessionSpec) -> SessionSpec:
    """Return the settings with ``emulate`` in the policy, where ``backend_options.mxnet.emulate`` asks for it."""
    return spec.under(emulated(spec, spec.policy))


def emulated(spec: SessionSpec, policy: Policy) -> Policy:
    """Return a policy of the session as it runs."""
    return policy.replace(emulate=True) if spec.options.get("emulate") and not policy.emulate else policy
