"""The file in which the counted process notes what happens."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from .request import LOG


class Log:
    """Appends lines of JSON; each is written at once and whole.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, kind: str, **values: Any) -> None:
        """Append one line."""
        os.write(self._file, json.dumps({"kind": kind, **values}, allow_nan=False).encode() + b"\n")


def finite(value: float) -> float | None:
    """Return a number, or None for inf and nan, which JSON does not have."""
    return value if math.isfinite(value) else None
