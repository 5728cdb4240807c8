"""The sentence at the end of a comparison: what its figures say to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt

from .rows import Row

POINTS = 0.5
"""Percentage points of accuracy that may be lost, at least; or one standard error of the test set, if that is more."""
LOST = 0.02
"""Share of a score, or of the loss, that may be lost where there is no accuracy."""
WORTH_IT = 1.05
"""A ratio of speed from which a change is worth making."""
ROUNDS, CLEAR = 5, 1.2
"""Fewer rounds may be all alike by chance; they count when the smallest ratio is at least this."""
LOSS = 0.05
"""How much higher than float32's the loss of a script may be, as a share of it."""
SAVES = 0.8
"""A share of float32's memory below which a policy is worth having for that alone."""


def advise(rows: Iterable[Row]) -> list[str]:
    """Return one sentence per group of runs that were compared with each other."""
    groups: dict[tuple[str, str, int | None], list[Row]] = {}
    for row in rows:
        groups.setdefault(row.task.group, []).append(row)
    return [f"{_heading(group)}: {_sentence(group)}" for group in groups.values()]


def _heading(group: Sequence[Row]) -> str:
    task = group[0].task
    return f"{task.backend}, {task.circumstances}"


def _sentence(group: Sequence[Row]) -> str:
    baseline = next((row for row in group if row.is_baseline and row.state == "done"), None)
    others = [row for row in group if not row.is_baseline]
    done = [row for row in others if row.state == "done"]
    if baseline is None:
        return "no finished float32 row to compare with"
    if not others:
        return "nothing beside float32 was run"
    if not done:
        return "stay with float32: " + "; ".join(f"{row.task.policy} {_lost(row)}" for row in others)
    good = [row for row in done if _faster(row) and _sure(row) and _as_good(row, baseline)]
    if good:
        best = max(good, key=lambda row: row.ratio or 0.0)
        return f"{_figures(best, baseline)}: use it"
    judged = [f"{_figures(row, baseline)}: {_verdict(row, baseline)}" for row in done]
    return "; ".join(judged)


def _lost(row: Row) -> str:
    return "cannot run here" if row.state == "refused" else "failed"


def _verdict(row: Row, baseline: Row) -> str:
    if not _as_good(row, baseline):
        return "too much is lost, stay with float32 or see unifiedamp tune" if _faster(row) else "stay with float32"
    if _slower(row):
        return "stay with float32"
    if _faster(row):
        return f"{len(row.rates)} rounds are too few to be sure, repeat it with --rounds {ROUNDS} or more"
    if row.peak_memory and baseline.peak_memory and row.peak_memory <= SAVES * baseline.peak_memory:
        return f"use it where memory is short ({1 - row.peak_memory / baseline.peak_memory:.0%} less)"
    return "no gain beyond the noise, stay with float32"


def _figures(row: Row, baseline: Row) -> str:
    speed = row.ratio or 0.0
    speed_text = f"{speed:.1f}x faster" if speed >= WORTH_IT else f"{speed:.2f}x the speed"
    if row.accuracy is None or baseline.accuracy is None:
        than = "than" if speed >= WORTH_IT else "of"
        return f"{row.task.policy}: {speed_text} {than} float32, {_quality(row, baseline)}"
    points = round(100 * (row.accuracy - baseline.accuracy), 1) + 0.0
    return (
        f"{row.task.policy}: {speed_text} than float32, accuracy {points:+.1f} points"
        if speed >= WORTH_IT
        else (f"{row.task.policy}: {speed_text} of float32, accuracy {points:+.1f} points")
    )


def _quality(row: Row, baseline: Row) -> str:
    name, before, after = _judged(row, baseline)
    if name == "loss" and not (row.losses and baseline.losses):
        return "loss unknown"
    return f"{name} {_number(before)} -> {_number(after)}"


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def _judged(row: Row, baseline: Row) -> tuple[str, float | None, float | None]:
    """Return what quality is judged by, where there is no accuracy: the first score, or the loss; float32's first."""
    name = next(iter(baseline.scores), None)
    if name is not None and name in row.scores:
        return name, baseline.scores[name], row.scores[name]
    return "loss", baseline.loss, row.loss


def _as_good_otherwise(row: Row, baseline: Row) -> bool:
    name, before, after = _judged(row, baseline)
    if before is None or after is None or row.loss is None:
        return False
    worse = after - before if name == "loss" else before - after
    return worse <= (LOST if row.unit != "steps" else LOSS) * abs(before)


def _faster(row: Row) -> bool:
    return (row.ratio or 0.0) >= WORTH_IT and (row.ratio_low or 0.0) > 1


def _sure(row: Row) -> bool:
    return len(row.rates) >= ROUNDS or (row.ratio_low or 0.0) >= CLEAR


def _slower(row: Row) -> bool:
    return (row.ratio or 0.0) < 1 and (row.ratio_high or 0.0) < 1


def _as_good(row: Row, baseline: Row) -> bool:
    if row.accuracy is None or baseline.accuracy is None:
        return _as_good_otherwise(row, baseline)
    share = baseline.accuracy
    error = 100 * sqrt(share * (1 - share) / row.test_images) if row.test_images else 0.0
    return row.loss is not None and 100 * (baseline.accuracy - row.accuracy) <= max(POINTS, error)
