"""What ``unifiedamp diff`` finds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Divergence:
    """The first difference of two runs.

    Attributes:
        step: its step.
        part: "initial weights", "data", "forward", "backward", "reduction", "update", or "between recorded steps".
        name: the layer, parameter or weight.
        other: its name in the second run; empty where it is the same.
        kind: the layer's class; empty for others.
        distance: Euclidean distance divided by the larger norm, as estimated from the sketches.
        ulp: the same in ULP of ``dtype``, the lower-precision one of both.
        cosine: of the angle between the tensors, estimated; None where one is zero or not finite.
        dtype: see ``ulp``.
        limit: the distance from which it counts.
        note: what else is known; empty for nothing.
    """

    step: int
    part: str
    name: str
    other: str
    kind: str
    distance: float
    ulp: float
    cosine: float | None
    dtype: str
    limit: float
    note: str = ""


@dataclass(frozen=True)
class Difference:
    """What two recordings differ in.

    Attributes:
        settings: of environment and session: name, value of the first run, value of the second.
        steps: how many recorded steps both have.
        compared: what was compared, and how, in sentences.
        first: where they diverge; None where they do not.
    """

    settings: Sequence[tuple[str, str, str]]
    steps: int
    compared: Sequence[str]
    first: Divergence | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        first = None if self.first is None else asdict(self.first)
        if first is not None:
            first |= {key: str(first[key]) for key in ("distance", "ulp") if not math.isfinite(first[key])}
        rows = [{"setting": name, "a": a, "b": b} for name, a, b in self.settings]
        return {"settings": rows, "compared_steps": self.steps, "compared": list(self.compared), "first": first}
