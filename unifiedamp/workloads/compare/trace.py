"""Writes the trace of the first training steps: what each layer contributed, in the order of computation.

Only what every framework has the same is used: the weights and the optimizer's state before and after each step, under
the names that the workload exports them by. A workload that knows its layers says more about them
(``parity_values``); otherwise the updates of the weights are compared, from the last layer to the first.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ConfigError, UnsupportedError
from ..definition.loading import Loaded
from ..definition.protocol import ParityValue, Snapshot
from ..training.batches import elements, endless, native
from ..training.loop import Step
from ..training.run import Run

FLOAT32 = 2.0**-24
"""Half of float32's epsilon: the relative error of one rounding."""
STORED = 4
"""Maximum number of roundings in a stored array."""
ROUNDINGS = 3
"""Of a layer: a product or convolution, a bias or norm, an activation or pooling."""
LOSS = "loss"


def write_trace(run: Run, step: Step, steps: int, path: Path) -> int:
    """Train ``steps`` optimizer steps from the initial weights and write the trace; return its number of entries.

    The file is an ``.npz``: ``about`` is JSON, ``{"terms": …, "entries": [{"step", "layer", "what", "depth", "floor",
    "scale"}, …]}``; entry ``i`` has its values in ``value<i>``. ``depth`` is the number of roundings of a
    value, ``floor`` the relative error from storing it, ``scale`` a norm to compare errors with (0: its own).

    Raises:
        UnsupportedError: the workload exports no weights, by which backends could be compared.
    """
    if not run.workload.has("export_weights"):
        raise UnsupportedError(
            f"{run.workload.name} has no export_weights(amp, model), by whose names parity compares backends: add it, "
            "with import_weights(amp, model, weights)"
        )
    entries: list[dict[str, Any]] = []
    values: list[Any] = []
    terms = 1
    for number, found in _values(run, step, steps):
        entry = {"step": number, **asdict(found)}
        values.append(np.asarray(entry.pop("value"), np.float64))
        terms = max(terms, entry.pop("terms"))
        entries.append(entry)
    about = json.dumps({"terms": terms, "entries": entries})
    np.savez(path, about=np.array(about), **{f"value{i}": value for i, value in enumerate(values)})
    return len(entries)


def _values(run: Run, step: Step, steps: int) -> Iterator[tuple[int, ParityValue]]:
    batches, before = endless(run.workload), _snapshot(run, 0.0, 1)
    for name, value in before.weights.items():
        yield 0, ParityValue(name.replace("/", "."), "initial weight", value, 0, floor=STORED * FLOAT32)
    for number in range(1, steps + 1):
        window = list(itertools.islice(batches, run.window))
        losses = [float(np.ravel(run.amp.to_numpy(step(native(run.amp, batch))))[0]) for batch in window]
        after = _snapshot(run, float(np.mean(losses)), max(map(elements, window)))
        applied = ParityValue("optimizer", "applied steps", np.array([float(run.amp.applied_steps)]), 0)
        for found in _observed(run.workload, before, after):
            yield number, found
            if found.layer == LOSS:
                yield number, applied
        before = after


def _snapshot(run: Run, loss: float, batch_size: int) -> Snapshot:
    optimizer = run.state.optimizer() if run.workload.has("export_optimizer") else {}
    return Snapshot(run.state.weights(), optimizer, loss, batch_size)


def _observed(workload: Loaded, before: Snapshot, after: Snapshot) -> Iterable[ParityValue]:
    if not workload.has("parity_values"):
        return updates(before, after)
    found = list(workload.call("parity_values", before, after))
    if not all(isinstance(one, ParityValue) for one in found) or not any(one.layer == LOSS for one in found):
        raise ConfigError(f"{workload.name}: parity_values must return ParityValues, one of them of the layer {LOSS!r}")
    return found


def updates(before: Snapshot, after: Snapshot) -> Iterator[ParityValue]:
    """Yield the loss, and the update of each weight from the last layer to the first.

    A layer is what comes before the last "/" or "." of a name; names are in forward order.
    """
    order = list(dict.fromkeys(map(_layer, after.weights)))
    terms = max([after.batch_size, *(math.prod(value.shape[:-1]) for value in after.weights.values())])
    whole = ROUNDINGS * len(order)
    yield ParityValue(LOSS, "loss", np.array([after.loss]), whole, terms)
    for place, layer in reversed(list(enumerate(order))):
        depth = whole + ROUNDINGS * (len(order) - place)
        for name in [name for name in after.weights if _layer(name) == layer]:
            value = after.weights[name].astype(np.float64) - before.weights[name].astype(np.float64)
            floor = stored(after.weights[name], value)
            yield ParityValue(name.replace("/", "."), "update", value, depth, terms, floor)


def stored(whole: Any, part: Any) -> float:
    """Return the relative error of ``part``, a difference of stored arrays as large as ``whole``."""
    size = float(np.linalg.norm(part))
    floor = STORED * FLOAT32 * float(np.linalg.norm(whole)) / size if size else 0.0
    return floor if math.isfinite(floor) else 0.0


def _layer(name: str) -> str:
    return name.replace(".", "/").rpartition("/")[0] or name
