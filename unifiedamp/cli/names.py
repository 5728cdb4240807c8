"""What can be named on the command line and in a configuration, and what each name means."""

from __future__ import annotations

from collections.abc import Callable

from ..backend import COMPILE_MODES
from ..backend.capabilities import TUNING
from ..config import plugins
from ..config.environment import VARIABLES
from ..policy import DTYPES, OP_CHOICES, OP_VOCABULARY, PRESETS, Policy
from ..policy.presets import ALIASES

Names = dict[str, str]
LOSS_SCALES = {
    "none": "no loss scaling",
    "dynamic": "grows while gradients are finite, shrinks and skips the step where they are not",
    "1024": "any positive number: that scale, always",
    "dynamic(initial_scale=65536.0)": "dynamic, with these settings (docs: loss scaling)",
}


def backends() -> Names:
    """Return the registered backends: the framework's version, or why it cannot be used."""
    found = plugins.available_backends()
    return {name: _backend(info) for name, info in found.items()}


def _backend(info: plugins.BackendInfo) -> str:
    framework = info.plugin.framework if info.plugin else info.name
    return f"{framework} {info.version or ''}".strip() if info.installed else info.reason


def policies() -> Names:
    """Return the presets, in words."""
    return {name: _policy(policy) for name, policy in PRESETS.items()}


def _policy(policy: Policy) -> str:
    scale = policy.resolved_loss_scale.kind
    words = f"parameters in {policy.param_dtype}, computations in {policy.compute_dtype}"
    return words + ("" if scale == "none" else f", {scale} loss scale")


def aliases() -> Names:
    """Return other libraries' names for presets."""
    return {name.upper() if name.startswith("o") else name: preset for name, preset in ALIASES.items()}


def operations() -> Names:
    """Return what ``op_overrides`` can name."""
    return dict.fromkeys(OP_VOCABULARY, " or ".join(OP_CHOICES))


def dtypes() -> Names:
    """Return dtypes of layers, and their other spellings."""
    found: Names = {}
    for spelling, dtype in DTYPES.items():
        found[dtype] = ", ".join(filter(None, [found.get(dtype, ""), spelling if spelling != dtype else ""]))
    return {name: f"also {others}" if others else "" for name, others in found.items()}


def variables() -> Names:
    """Return the environment variables that stand for arguments."""
    return {name: f"the argument {argument} of Amp" for argument, name in VARIABLES.items()}


def faults() -> Names:
    """Return what ``conformance --mutants`` breaks."""
    from ..conformance.faults import FAULTS

    return {name: " ".join(fault.about.split()) for name, fault in FAULTS.items()}


KINDS: dict[str, tuple[str, Callable[[], Names]]] = {
    "backends": ("--backend, --backends, backend =", backends),
    "policies": ("--policy, --policies, policy =", policies),
    "aliases": ("other libraries' names for policies", aliases),
    "loss-scales": ("loss_scale =", lambda: dict(LOSS_SCALES)),
    "compile-modes": ("--compile, compile =", lambda: dict(COMPILE_MODES)),
    "operations": ("op_overrides of a policy", operations),
    "dtypes": ("layer_overrides of a policy", dtypes),
    "tuning": ("items of tuning =", lambda: dict(TUNING)),
    "variables": ("environment variables, before the configuration", variables),
    "faults": ("conformance --mutants --fault", faults),
}
"""Kind → where its names are used, and the names."""
