"""Write the golden vectors of the conformance kit from the pure references: of the loss scale, and of rounding.

Usage: ``python scripts/make_vectors.py [--check]``; ``--check`` writes nothing and fails when a file would change.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unifiedamp.formats import BLOCK_FORMATS, FLOAT_FORMATS
from unifiedamp.formats.block_rounding import round_blocks
from unifiedamp.formats.rounding import round_to
from unifiedamp.loss_scale import DynamicLossScale, LossScale, StaticLossScale

FOLDER = Path(__file__).parents[1] / "unifiedamp" / "conformance" / "vectors"
ROUNDING = FOLDER / "rounding" / "formats.json"
INF, NAN = math.inf, math.nan
FOUR = DynamicLossScale(initial_scale=4.0, growth_interval=3)

# name: (the rule, the settings, micro-batches per step, true gradients per micro-batch and optimizer)
CASES: dict[str, tuple[str, LossScale, int, list[list[float]]]] = {
    "canonical": ("the canonical seven steps", FOUR, 1, [[1], [1], [1], [INF], [1], [1], [1]]),
    "floor": ("the scale stops at min_scale", replace(FOUR, min_scale=1.0), 1, [[INF]] * 5 + [[1]] * 4),
    "ceiling": (
        "the scale stops at max_scale",
        replace(FOUR, max_scale=8.0, growth_interval=1),
        1,
        [[1]] * 4 + [[NAN]],
    ),
    "hysteresis": (
        "it takes hysteresis overflows in a row to back off",
        replace(FOUR, hysteresis=2),
        1,
        [[INF], [1], [INF], [NAN], [-INF], [1], [1], [1], [INF]],
    ),
    "hysteresis_until_growth": (
        "overflows count towards hysteresis until the scale grows",
        replace(FOUR, hysteresis=2, hysteresis_reset="growth", growth_interval=2),
        1,
        [[INF], [1], [INF], [1], [NAN], [1], [1], [INF], [1], [-INF], [INF], [1], [1]],
    ),
    "growth_restarts": (
        "a skip restarts the growth count",
        FOUR,
        1,
        [[1], [1], [INF], [1], [1], [INF], [1], [1], [1], [1]],
    ),
    "factors": (
        "growth and backoff factors other than 2",
        replace(FOUR, growth_factor=3.0, backoff_factor=0.25, growth_interval=2),
        1,
        [[1], [1], [INF], [1], [1], [1], [1], [NAN]],
    ),
    "float32_rounding": (
        "the scale is a float32 value at each step",
        replace(FOUR, growth_factor=1.1, backoff_factor=0.7, growth_interval=1, hysteresis=1),
        1,
        [[1], [1], [1], [INF], [1], [INF], [1], [1]],
    ),
    "window": (
        "a non-finite micro-batch discards its window, and the scale is constant inside a window",
        replace(FOUR, growth_interval=2),
        3,
        [[1], [2], [3], [INF], [1], [1], [1], [NAN], [1], [1], [1], [1], [2], [2], [2]],
    ),
    "two_optimizers": (
        "each optimizer skips by itself; the scale moves once per iteration",
        replace(FOUR, growth_interval=2),
        1,
        [[1, 1], [INF, 1], [1, NAN], [INF, INF], [1, 1], [1, 1], [1, 2]],
    ),
    "static": ("a static scale skips and never moves", StaticLossScale(128.0), 1, [[1], [INF], [NAN], [1]]),
}


def trajectory(setting: LossScale, window: int, steps: list[list[float]]) -> dict[str, list[Any]]:
    """Run the reference over ``steps``; weights start at 1 and move by plain SGD with learning rate 0.125."""
    state = setting.initial_state()
    weights = [1.0] * len(steps[0])
    pending: list[list[float]] = []
    out: dict[str, list[Any]] = {"scale_used": [], "scale_after": [], "good_steps": [], "bad_steps": [], "weights": []}
    out |= {"applied_steps": [], "skipped_steps": []}
    for gradients in steps:
        out["scale_used"].append(state.scale)
        pending.append(gradients)
        if len(pending) == window:
            found = [not all(map(math.isfinite, column)) for column in zip(*pending, strict=True)]
            for i, bad in enumerate(found):
                if not bad:
                    weights[i] -= 0.125 * sum(row[i] for row in pending) / window
            applied, skipped = state.applied_steps + found.count(False), state.skipped_steps + found.count(True)
            state = replace(setting.next_state(state, any(found)), applied_steps=applied, skipped_steps=skipped)
            pending = []
        out["scale_after"].append(state.scale)
        out["weights"].append(list(weights))
        for key in ("good_steps", "bad_steps", "applied_steps", "skipped_steps"):
            out[key].append(getattr(state, key))
    return out


def vector(name: str) -> dict[str, Any]:
    """Return one golden vector as plain JSON values; inf and nan are written as text."""
    rule, setting, window, steps = CASES[name]
    gradients = [[value if math.isfinite(value) else str(value) for value in row] for row in steps]
    settings = setting.to_dict()
    if settings.get("hysteresis_reset") == "good_step":
        del settings["hysteresis_reset"]  # the default, which older vectors do not name
    head = {"name": name, "rule": rule, "loss_scale": settings, "accumulate_steps": window}
    return {**head, "learning_rate": 0.125, "gradients": gradients, "expected": trajectory(setting, window, steps)}


def rounding() -> dict[str, Any]:
    """Return float32 numbers and what each format keeps of them, as bits in hexadecimal.

    They are ties and their neighbours, the ends of each format's range, and random numbers, none of them subnormal.
    """
    edges = [1.0, -0.0, INF, -INF, NAN, 2.0**-126, 3.0e38]
    for form in FLOAT_FORMATS.values():
        step = 2.0 ** -(form.mantissa_bits + 1)
        edges += [form.max, form.max * (1 + step), form.min_normal * (1 - step), form.min_subnormal / 2]
        edges += [1 + step, 1 + 3 * step, -1 - step]
    values = np.array(edges, np.float64).astype(np.float32)
    near = [np.nextafter(values[np.isfinite(values)], np.float32(end)) for end in (-INF, INF)]
    random = np.random.default_rng(0).normal(size=40) * np.exp2(np.random.default_rng(1).integers(-30, 20, 40))
    inputs = np.concatenate([values, *near, random.astype(np.float32)])
    inputs = inputs[~(np.abs(inputs) < 2.0**-126) | (inputs == 0)]
    rows = (np.random.default_rng(2).normal(size=(2, 64)) * np.exp2(np.arange(64) // 8)).astype(np.float32)
    return {
        "inputs": _hexadecimal(inputs),
        "rounded": {name: _hexadecimal(round_to(inputs, form)) for name, form in FLOAT_FORMATS.items()},
        "rows": [_hexadecimal(row) for row in rows],
        "rounded_rows": {
            name: [_hexadecimal(row) for row in round_blocks(rows, form)] for name, form in BLOCK_FORMATS.items()
        },
    }


def _hexadecimal(values: Any) -> list[str]:
    return [f"{bits:08x}" for bits in np.asarray(values, np.float32).view(np.uint32).ravel().tolist()]


def main() -> None:
    """Write the files, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    ROUNDING.parent.mkdir(parents=True, exist_ok=True)
    files = {FOLDER / f"{name}.json": json.dumps(vector(name), indent=1) for name in CASES}
    files[ROUNDING] = json.dumps(rounding())
    for path, found in files.items():
        text = found + "\n"
        if check and (not path.exists() or path.read_text(encoding="utf-8") != text):
            raise SystemExit(f"{path} is not what the reference gives: run python scripts/make_vectors.py")
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
