"""The list of faults, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from unifiedamp.backend import LegacyBackend

B = TypeVar("B", bound=type[LegacyBackend])


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        name: what is wrong, in words joined by underscores.
        layer: the subclass of ``Backend`` that does it.
        seen_by: tests that look at it; they are run first.
        needs: the capability without which the fault changes nothing; empty for none.
    """

    name: str
    layer: type[LegacyBackend]
    seen_by: tuple[str, ...]
    needs: str = ""

    @property
    def about(self) -> str:
        """What is wrong, in a sentence."""
        return (self.layer.__doc__ or "").strip()

    def over(self, backend: type[LegacyBackend]) -> type[LegacyBackend]:
        """Return ``backend`` with the fault."""
        return type(backend.__name__, (self.layer, backend), {"__module__": backend.__module__, "__doc__": self.about})


FAULTS: dict[str, Fault] = {}


def fault(*seen_by: str, needs: str = "") -> Callable[[B], B]:
    """Add a fault, named after its class.

    Args:
        *seen_by: names of tests to run first.
        needs: see :class:`Fault`.
    """

    def register(layer: B) -> B:
        name = "".join(f"_{one.lower()}" if one.isupper() else one for one in layer.__name__).lstrip("_")
        FAULTS[name] = Fault(name, layer, seen_by, needs)
        return layer

    return register
