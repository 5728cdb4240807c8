"""Runs of a workload on the workers of ``TF_CONFIG`` or ``launch.py``, for ``test_workers_train.py``."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console

from unifiedamp.conformance.ranks import SIZES, RankCase
from unifiedamp.conformance.ranks.program import play
from unifiedamp.loss_scale import DynamicLossScale
from unifiedamp.workloads.configuration import read_settings, read_source
from unifiedamp.workloads.training.loop import train
from unifiedamp.workloads.training.report import Report

FOLDER = Path(__file__).parent / "workloads"
FILES = {"tensorflow": FOLDER / "divided_keras.py", "mxnet": FOLDER / "divided_gluon.py"}
SCALES = {"loss_scale": {"kind": "dynamic", "initial_scale": 1024.0, "growth_interval": 4}}
CASES = {
    "plain": {},
    "last batch of one row": {"given": {"rows": 129}},
    "windows, clipping": {"amp": {"accumulate_steps": 2}, "train": {"clip_norm": 0.1}},
    "compiled, uneven parts": {"given": {"batch_size": 21, "rows": 100}, "train": {"compile": True}},
    "overflow on one worker": {"amp": SCALES, "given": {"fault": "overflow"}},
    "stopped": {"given": {"fault": "stopped"}, "train": {"epochs": 4}},
    "other order": {"given": {"fault": "other order"}},
    "ends early": {"given": {"fault": "ends early"}},
}
OF_BACKEND = {
    "tensorflow": {},
    "mxnet": {
        "two optimizers": {"amp": SCALES, "given": {"fault": "two optimizers"}, "train": {"clip_norm": 0.1}},
        "no shape": {"given": {"fault": "no shape"}},
    },
}
"""Further cases."""


def cases_of(backend):
    return {**CASES, **OF_BACKEND[backend]}


def run(backend, folder, amp=None, train_table=None, given=None, resume=False):
    """Train one case; return what a user finds afterwards."""
    session = {"backend": backend, "device": "cpu", "policy": "float32", **(amp or {})}
    table = {"epochs": 2, **(train_table or {})}
    chosen = read_settings(
        read_source(f"{FILES[backend]}:Regression"), folder, amp=session, train=table, given=given or {}
    )
    with open("/dev/null", "w") as nowhere:
        try:
            done = train(chosen, Report(Console(file=nowhere)), resume=resume)
        except (Exception, KeyboardInterrupt) as error:
            return {"error": f"{type(error).__name__}: {error}"}
    return {"losses": done.history.losses, "state": done.amp.state_dict()["state"], "rows": done.history.epochs}


def run_case(backend, folder, case):
    options = cases_of(backend)[case]
    return run(backend, folder, **{{"train": "train_table"}.get(key, key): value for key, value in options.items()})


def on_worker(_index, _count, backend, folder):
    """Run every case on one worker."""
    for case in cases_of(backend):
        yield run_case(backend, Path(folder, case), case)


def on_loading_worker(index, _count, backend):
    """Load the first worker's scale on it alone; return what each worker says, in both forms of the step."""
    side = worker_side(backend, index)
    for form in ("eager", "compiled"):
        ones = tuple((tuple(np.ones(size, np.float32) for size in SIZES),) * 2 for _ in range(2))
        case = RankCase(form, ones, DynamicLossScale(initial_scale=8.0))
        first = play(side, case, form)[0].state
        state = {**first, "state": {**first["state"], "scale": 64.0}}
        try:
            play(side, replace(case, state=None if index else state), form)
            yield "trained"
        except Exception as error:
            yield f"{type(error).__name__}: {error}"


def worker_side(backend, index):
    """What trains the kit's cases on one worker."""
    if backend == "mxnet":
        from unifiedamp_mxnet.conformance.ranks import Worker

        return Worker(index, {})
    from unifiedamp_tensorflow.conformance.ranks import Replicas, of_cluster

    return Replicas(of_cluster(), {})


DIFFERENT = {
    "loss_scale": [{"loss_scale": 8.0}, {"loss_scale": 16.0}],
    "accumulate_steps": [{"accumulate_steps": 1}, {"accumulate_steps": 2}],
    "policy": [{"policy": "float32"}, {"policy": "mixed_bfloat16", "backend_options": {"mxnet": {"emulate": True}}}],
}
"""Setting → the sessions of two workers that differ in it."""


def on_differing_worker(index, _count, backend, folder):
    """Train with each of ``DIFFERENT``, and without a difference afterwards."""
    for name, sessions in DIFFERENT.items():
        options = sessions[index].get("backend_options", {})
        session = {**sessions[index], "backend_options": {key: options[key] for key in options if key == backend}}
        yield run(backend, Path(folder, name), amp=session)
    yield run(backend, Path(folder, "alike"))
