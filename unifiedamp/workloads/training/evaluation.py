"""A workload's scores: a number, or several by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError
from ...session import Amp
from ..definition.loading import Loaded
from .saved import check_shares

SCORE = "score"
"""The name of a score that has none."""


def evaluate(workload: Loaded, amp: Amp, model: Any) -> dict[str, float]:
    """Return the scores of a model by name; none where the workload has no evaluation.

    Raises:
        ConfigError: what it returned is no score.
    """
    if not workload.has("evaluate"):
        return {}
    found = workload.call("evaluate", amp, model)
    named = found if isinstance(found, Mapping) else {SCORE: found}
    scores = {_name(name, workload): _number(value, name, amp, workload) for name, value in named.items()}
    try:
        check_shares({name: score for name, score in scores.items() if math.isfinite(score)})
    except ValueError as error:
        raise ConfigError(f"{workload.name}: evaluate: {error}") from None
    return scores


def _name(name: Any, workload: Loaded) -> str:
    if not isinstance(name, str) or not 0 < len(name) < 1000:
        raise ConfigError(f"{workload.name}: evaluate must name its scores with text, got {name!r:.80}")
    return name


def _number(value: Any, name: str, amp: Amp, workload: Loaded) -> float:
    import numpy as np

    try:
        return float(np.reshape(value if isinstance(value, (bool, int, float)) else amp.to_numpy(value), ()))
    except Exception:
        raise ConfigError(
            f"{workload.name}: evaluate must return a number, or a mapping of names to numbers; {name!r} is "
            f"{type(value).__name__}"
        ) from None
