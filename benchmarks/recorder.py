"""Recorder overhead: unifiedamp's loop with `amp.record`, compared with the same loop without it.

`python benchmarks/recorder.py [torch] [tensorflow] [mxnet]` measures each framework in a separate process, prints a
table and writes `benchmarks/results/recorder-<backend>.json` (`-gpu` on a GPU).

The loops of a row take turns in one process: every fifth step of one is recorded, the other has no recorder. What that
adds to a step, times 5 / 100, is what recording every 100th step adds. For a GPU, models whose steps take some time:

    python benchmarks/recorder.py torch --recipes "GPT-2 small 1024" "ResNet-50 224" --policy mixed_bfloat16
        --forms compiled max --what layers gradients states --pairs 40
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cli
import numpy as np
from recipes import RECIPES, Parts, find, layered
from timing import WARM_UP, Comparison, Loop, hardware, in_rounds, ratio_of, say, write

import unifiedamp as ua

EVERY = 5
"""Steps of a turn; one of them is recorded."""
ASKED = 100
"""The default ``every`` of ``amp.record``."""
FORMS = {"compiled": "default", "eager": "off", "max": "max"}
KINDS = ("recorded", "stopped", "never")
WHAT: dict[str, dict[str, bool]] = {
    "layers": {},
    "gradients": {"activations": False},
    "states": {"states": True},
    "compare": {"compare": True},
}
"""What is recorded → arguments of ``amp.record``."""


def prepared(kind: str, backend: str, row: dict[str, str], options: Any) -> tuple[ua.Amp, Callable[[], Any]]:
    """Return a session and its step, which records every ``EVERY``-th step, recorded earlier, or never recorded."""
    amp = ua.Amp(backend, row["policy"], compile=FORMS[row["form"]])
    step = layered(amp, Parts(backend, find(row["recipe"], options.smoke)))
    if kind != "never":
        recorder = amp.record(Path(options.folder) / "numbers.jsonl", every=EVERY, **WHAT[row["records"]])
        for _ in range(WARM_UP + 2 * EVERY):
            step()
        if kind == "stopped":
            recorder.stop()
    return amp, step


def cost(ratio: float) -> float:
    """Return the cost of recording every ``ASKED``-th step, in per cent of the total time."""
    return (ratio - 1) * EVERY / ASKED * 100


def measure(backend: str, row: dict[str, str], kinds: Sequence[str], options: Any) -> Comparison:
    """Measure one row: a loop of the first kind compared with one of the second."""
    native = cli.native_of(backend)
    sessions, steps = zip(*(prepared(kind, backend, row, options) for kind in kinds), strict=True)
    loops = [Loop(step, native.finish) for step in steps]
    for loop in loops:
        loop.turn(2 * EVERY)
    times = in_rounds(loops, [EVERY] * 2, options.pairs, options.seconds)
    ratio, low, high = ratio_of(times[:, 0], times[:, 1])
    for amp in sessions:
        amp.close()
    told = f"{cost(ratio):+.2f} % ({cost(low):+.2f} to {cost(high):+.2f})" if kinds[0] == "recorded" else ""
    labels = {**row, "loops": " / ".join(kinds), f"at every {ASKED}th step": told}
    say(f"{', '.join(labels.values())}: {ratio:.3f} ({low:.3f}-{high:.3f})")
    first, second = (float(value) for value in np.median(times, axis=0) * 1e3)
    return Comparison(labels, first, second, ratio, low, high, len(times), EVERY)


def measure_all(backend: str, options: Any, path: Path) -> None:
    """Measure every row; write the results after each."""
    native = cli.native_of(backend)
    native.begin()
    before = hardware(native.gpu())
    title = f"{backend}: the loop with recording over the loop without, policy {options.policy}"
    rows: list[Comparison] = []
    with tempfile.TemporaryDirectory() as options.folder:
        for recipe in options.recipes:
            for form, what in itertools.product(options.forms, options.what):
                for first in KINDS if what == options.what[0] else KINDS[:1]:
                    row = {"recipe": recipe, "policy": options.policy, "form": form, "records": what}
                    rows.append(measure(backend, row, (first, "never"), options))
                    write(path, title, ("first", "second"), before, rows)


if __name__ == "__main__":
    parser = cli.parser(__doc__, 100, ["conv 28x28"], tuple(RECIPES))
    parser.add_argument("--policy", default="float32", help="policy of both loops (default: float32)")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=["compiled", "eager"], help="forms of the loops")
    parser.add_argument("--what", nargs="+", choices=WHAT, default=["layers"], help="what is recorded")
    sys.exit(cli.run(parser, __file__, "recorder", measure_all))
