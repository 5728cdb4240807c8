"""The configurations compared by ``frameworks.py``, one module per backend.

Each module has ``setups(recipe)``, name → :class:`Setup` in the order of measurement, and ``build(parts, setup)``,
which returns the :class:`turns.Loop` of a native one. ``build`` runs in the configuration's process, so it may change
process-wide settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Setup:
    """One configuration.

    Attributes:
        how: the user's settings, in a few words.
        policy: "float32" or a mixed policy.
        compiled: argument of ``train_step`` of ``native``; for unifiedamp the mode of ``Amp(compile=...)``.
        ours: uses unifiedamp.
        stays: is a reference for later configurations.
        tf32: whether float32 products may use TF32; None keeps the framework's default.
        channels_last: use torch's channels-last memory format.
        tuned: turn on cuDNN's autotuning.
        tuning: ``Amp(tuning=...)`` of unifiedamp.
    """

    how: str
    policy: str
    compiled: bool | str = False
    ours: bool = False
    stays: bool = False
    tf32: bool | None = None
    channels_last: bool = False
    tuned: bool = False
    tuning: str | Mapping[str, Any] | None = None


def ours(policy: str) -> dict[str, Setup]:
    """Return unifiedamp's forms, which differ in one setting."""
    forms = {"eager": "off", "default": "default", "max": "max"}
    found = {f"ours {name}": Setup(f'compile="{mode}"', policy, mode, ours=True) for name, mode in forms.items()}
    return {**found, "ours fast": Setup('tuning="fast"', policy, "max", ours=True, tuning="fast")}
