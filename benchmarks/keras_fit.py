"""A step of Keras's `fit` with `AmpCallback`, compared with Keras's own mixed precision.

`python benchmarks/keras_fit.py` prints a table and writes `benchmarks/results/keras-fit.json` (`-gpu` on a GPU). A turn
is one call of `fit`; both sides train the same model on the same batches. Host: the global policy, an optimizer that
`model.compile` wraps in Keras's `LossScaleOptimizer` under `mixed_float16`, and no callback.
"""

from __future__ import annotations

import argparse
import io
import math
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import cli
import numpy as np
import tensorflow as tf
from record import RESULTS, hardware, show
from timing import Comparison, in_rounds, ratio_of, say, write

import unifiedamp as ua
from unifiedamp.integrations.keras import AmpCallback

keras = tf.keras
LAYERS = keras.layers
BATCH = 64
POLICIES = ("mixed_float16", "mixed_bfloat16")
FORMS = {"graph": {"jit_compile": False}, "xla": {"jit_compile": True}}
VERBOSE = {"silent": 0, "progress bar": 1}


def mlp() -> Any:
    hidden = [LAYERS.Dense(512, "relu") for _ in range(3)]
    return keras.Sequential([keras.Input((256,)), *hidden, LAYERS.Dense(10, dtype="float32")])


def conv() -> Any:
    hidden = [LAYERS.Conv2D(16, 3, activation="relu"), LAYERS.Conv2D(32, 3, 2, activation="relu")]
    return keras.Sequential(
        [keras.Input((28, 28, 1)), *hidden, LAYERS.Flatten(), LAYERS.Dense(10, dtype="float32")]
    )  # fmt: skip


MODELS = {"mlp 3x512": mlp, "conv 28x28": conv}


class Fit:
    """A model whose turns are calls of ``fit``."""

    def __init__(self, model: Any, verbose: int, callbacks: Sequence[Any]) -> None:
        self._model, self._verbose, self._callbacks = model, verbose, callbacks
        rng = np.random.default_rng(0)
        x = rng.normal(size=(BATCH, *model.input_shape[1:])).astype(np.float32)
        y = rng.integers(0, 10, BATCH)
        self._data = tf.data.Dataset.from_tensors((x, y)).cache().repeat()

    def turn(self, steps: int) -> float:
        """Run ``steps`` steps; return the seconds per step."""
        callbacks, verbose = list(self._callbacks), self._verbose
        with redirect_stdout(io.StringIO()):
            start = time.perf_counter()
            self._model.fit(self._data, steps_per_epoch=steps, epochs=1, verbose=verbose, callbacks=callbacks)
            return (time.perf_counter() - start) / steps


def host(name: str, policy: str, form: dict[str, Any], verbose: int) -> Fit:
    keras.mixed_precision.set_global_policy(policy)
    try:
        model = MODELS[name]()
        model.compile(keras.optimizers.Adam(1e-3), loss(), **form)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    return Fit(model, verbose, ())


def ours(name: str, policy: str, form: dict[str, Any], verbose: int) -> Fit:
    amp = ua.Amp("tensorflow", policy)
    with amp.scope():
        model, optimizer = MODELS[name](), keras.optimizers.Adam(1e-3)
    model, optimizer = amp.prepare(model, optimizer)
    model.compile(optimizer, loss(), **form)
    return Fit(model, verbose, [AmpCallback(amp)])


def loss() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def measure(labels: dict[str, str], options: Any) -> Comparison:
    """Time the two sides in turns."""
    settings = (labels["model"], labels["policy"], FORMS[labels["form"]], VERBOSE[labels["output"]])
    sides = (ours(*settings), host(*settings))
    for side in sides:
        side.turn(5)
    steps = max(5, round(options.turn / max(side.turn(20) for side in sides)))
    times = in_rounds(sides, (steps, steps), options.pairs, options.seconds)
    ratio, low, high = ratio_of(times[:, 0], times[:, 1])
    first, second = (float(value) for value in np.median(times, axis=0) * 1e3)
    say(f"{', '.join(labels.values())}: {ratio:.3f} ({low:.3f}-{high:.3f})")
    return Comparison(labels, first, second, ratio, low, high, len(times), steps)


def main() -> None:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("--pairs", type=int, default=40, help="pairs of turns for each row (default: 40)")
    made.add_argument("--seconds", type=float, default=math.inf, help="time limit per row, in seconds")
    made.add_argument("--turn", type=float, default=0.5, help="seconds of a turn (default: 0.5)")
    made.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS, help="models to measure")
    made.add_argument("--policies", nargs="+", default=list(POLICIES), choices=POLICIES)
    made.add_argument("--forms", nargs="+", default=list(FORMS), choices=FORMS)
    made.add_argument("--outputs", nargs="+", default=list(VERBOSE), choices=VERBOSE)
    made.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON file (default: %(default)s)")
    options = made.parse_args()
    gpu = cli.native_of("tensorflow").gpu()
    path = options.out / f"keras-fit{'-gpu' if gpu else ''}.json"
    options.out.mkdir(parents=True, exist_ok=True)
    before, rows = hardware(gpu), []
    title = f"tensorflow: fit with AmpCallback over Keras {keras.__version__}'s own mixed precision"
    for model in options.models:
        for policy in options.policies:
            for form in options.forms:
                for output in options.outputs:
                    labels = {"model": model, "policy": policy, "form": form, "output": output}
                    rows.append(measure(labels, options))
                    write(path, title, ("unifiedamp ms", "keras ms"), before, rows)
    show(path)


if __name__ == "__main__":
    sys.exit(main())
