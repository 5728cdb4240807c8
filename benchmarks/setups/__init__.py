"""The configurations that ``frameworks.py`` compares, one module per backend.

Each module has ``setups(recipe)``, name → :class:`Setup` in the order they are measured, and ``build(parts, setup)``,
which returns the :class:`turns.Loop` of a native one. Both run in a process that measures this configuration alone, so
that it may set what is one process's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Setup:
    """One configuration.

    Attributes:
        how: what a user writes for it, in a few words.
        policy: "float32" or a mixed policy.
        compiled: as ``train_step`` of ``native`` takes it; for ours the mode of ``Amp(compile=...)``.
        ours: by unifiedamp.
        stays: later configurations are held against it.
        tf32: whether float32 products may use TF32; None leaves the framework's default.
        channels_last: torch's memory format.
        tuned: let cuDNN try its algorithms out.
        tuning: of ours, as ``Amp(tuning=...)`` takes it.
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
    """Return the layer's forms; each differs from the others by one word of configuration."""
    forms = {"eager": "off", "default": "default", "max": "max"}
    found = {f"ours {name}": Setup(f'compile="{mode}"', policy, mode, ours=True) for name, mode in forms.items()}
    return {**found, "ours fast": Setup('tuning="fast"', policy, "max", ours=True, tuning="fast")}
