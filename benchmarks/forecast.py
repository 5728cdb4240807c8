"""How much of the time of ``tune``'s search a forecast takes, and which of the search's layers it names.

    python benchmarks/forecast.py [--backend torch]

For each planted model of ``tests/forecasts/planted.py`` it finds the layers that need float32, without a forecast,
and then counts a forecast's ten steps. Prints one line per model: the layers of both, and the forecast's share of the
search's processor time: medians of both, which are run in turns. Imports, and each framework's first step, are not
counted.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
import warnings
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "forecasts"))

from planted import MODELS, PlantedTrials, trained, tuned

from unifiedamp import PolicyWarning
from unifiedamp.forecast.forecast import Forecast
from unifiedamp.policy import Policy
from unifiedamp.workloads.tune.prober import FORECAST_STEPS

TURNS, FORECASTS = 5, 3
"""Turns that count, and the forecasts in each."""


def measure(backend: str, name: str) -> dict[str, object]:
    """Return the figures of one model."""
    policy, troubles, _ = MODELS[name]
    make = functools.partial(trained, backend, **troubles)
    for warm in (policy, "float32"):
        amp, step = make(warm)
        step()
        amp.close()
    searches, forecasts = [], []
    for _ in range(TURNS + 1):  # the first turn imports what a forecast needs
        start = time.process_time()
        found, trials = tuned(backend, name, forecasts=False)
        searches.append(time.process_time() - start)
        for _ in range(FORECASTS):
            start = time.process_time()
            forecast = Forecast.of_counted(PlantedTrials(make, forecasts=True).count(FORECAST_STEPS), 0.1)
            forecasts.append(time.process_time() - start)
    share = median(forecasts[FORECASTS:]) / median(searches[1:])
    named = [*forecast.policies[Policy.parse(policy).compute_dtype].hurt]
    return {
        "backend": backend, "model": name, "searched": found.float32_layers, "forecast": named,
        "search_steps": trials.steps, "share_of_time": round(share, 4),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="torch", choices=("torch", "tensorflow", "mxnet"))
    warnings.simplefilter("ignore", PolicyWarning)
    backend = parser.parse_args().backend
    for name in MODELS:
        print(json.dumps(measure(backend, name)), flush=True)


if __name__ == "__main__":
    main()
