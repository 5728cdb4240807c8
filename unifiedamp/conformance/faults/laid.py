"""Which faults lie over which backends in this process, so that processes that it starts have them too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from unifiedamp.backend import BackendPlugin, hookimpl
from unifiedamp.config import plugins

from .registry import FAULTS, Fault

_laid: dict[str, str] = {}


def lay_over(backend: str, fault: Fault) -> None:
    """Register ``backend`` with the fault, in this process."""
    known = plugins.load_plugin(backend)

    class Faulty:
        @hookimpl
        def unifiedamp_backend(self) -> BackendPlugin:
            return replace(known, load=lambda: fault.over(known.load()))

    plugins.register(backend, Faulty())
    _laid[backend] = fault.name


def laid_over() -> dict[str, str]:
    """Return backend → fault."""
    return dict(_laid)


def lay_over_all(faults: Mapping[str, str]) -> None:
    """Lay over what :func:`laid_over` returned in another process."""
    for backend, name in faults.items():
        lay_over(backend, FAULTS[name])
