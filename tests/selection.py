"""Which tests an environment runs: what another environment proves is left out, and costly forms are sampled.

CONTRIBUTING.md says what each environment proves.
"""

from __future__ import annotations

from collections.abc import Iterable

import effort
import pytest

from unifiedamp.conformance.plugin import backend_of, declared
from unifiedamp.conformance.sample import form_of, parameters_of

FRAMEWORKS = ("torch", "tensorflow", "mxnet")
ENVIRONMENTS = {
    "main": FRAMEWORKS, "keras2": ("tensorflow", "mxnet"),
    "keras2_tests": ("tensorflow", "mxnet"), "mxnet2": ("mxnet",), "numpy2": ("torch", "tensorflow"),
    "python313": ("tensorflow",), "integrations": ("torch",),
    "ray": ("torch", "tensorflow"),
}  # fmt: skip
"""Environment of the noxfile → the frameworks that its tests need."""
FEWEST_RANKS = 2
"""Of the chapter on ranks, other environments than the main one run the smallest groups."""
ON_NUMPY = {
    f"test_{name}"
    for name in (
        "arrays", "complex", "ema_saved", "ema_weights", "loaded_states", "master_weights", "model_weights",
        "optimizer_state", "portability", "prefetched", "sparse", "vectors",
    )
}  # fmt: skip
"""Chapters on arrays that come from numpy, go to it, or are saved: each case runs on each numpy."""
ASK_EACH = {"test_doctor", "test_tune"}
"""Files of commands whose answers are the backend's own."""
NAMED_BY = ("harness", "backend", "peer", "other", "together")
"""Parameters of tests that hold a backend's name."""


def own_folder(item: pytest.Item) -> str:
    """Return the framework whose own tests these are; "" for none."""
    return next((name for name in FRAMEWORKS if f"/on_{name}/" in item.path.as_posix()), "")


def place(item: pytest.Item) -> tuple[int, bool]:
    """Return what tests are sorted by: one framework after the other, and the longest of each first.

    pytest-xdist's ``worksteal`` gives each of two processes one half of the tests, in order: so few tests of TensorFlow
    run in the process that has imported torch, and the other way round; and neither waits for a long last test.
    """
    return ["torch", "", "mxnet", "tensorflow"].index(framework_of(item)), "test_random_trajectories" not in item.name


def framework_of(item: pytest.Item) -> str:
    """Return the framework that a test runs on; "" for none or several."""
    found = parameters_of(item)
    named = backend_of(item) or found.get("backend") or found.get("together")
    return str(named) if named in FRAMEWORKS else own_folder(item)


def is_proved_elsewhere(item: pytest.Item, backends: Iterable[str]) -> bool:
    """Tell whether the main environment proves it: the toy backend, undeclared features, and these ``backends``, which
    are there in the same version; what differs here is in their own folders, which stay.
    """
    named = {parameters_of(item).get(name) for name in NAMED_BY}
    if named & {"toy", *backends} and not own_folder(item):
        return True
    if _ranks_of(item) > FEWEST_RANKS:
        return True
    backend = backend_of(item)
    wanted = [feature for marker in item.iter_markers("needs") for feature in marker.args]
    return backend is not None and not all(declared(backend).feature(feature) for feature in wanted)


def _ranks_of(item: pytest.Item) -> int:
    """Return how many ranks train together in a test; 0 for most."""
    kind_and_count = parameters_of(item).get("ranks")
    return int(kind_and_count[1]) if isinstance(kind_and_count, tuple) else 0


def is_quick(item: pytest.Item) -> bool:
    """Tell whether a test compiles nothing: the toy does not, whatever its forms are called."""
    return not form_of(item) or form_of(item).startswith("eager") or backend_of(item) == "toy"


def is_repeated(item: pytest.Item) -> bool:
    """Tell whether a case of the suite is one of many that use Python and numpy alike: where those alone are newer."""
    return not effort.FULL and backend_of(item) is not None and item.path.stem not in ON_NUMPY


def alike(item: pytest.Item) -> str:
    """Return the name of a group of cases of which one stands for all; "" for a case that stands for itself.

    What commands do beside training does not depend on the backend: their cases run on one each, in turn. Those that
    ask each backend, or search with it, run on every one. So with checkpoints of a workload that is killed, which core
    writes; else a workload trains on every backend, in one of its test's other cases.
    """
    path, backend = item.path.as_posix(), str(parameters_of(item).get("backend") or "")
    if effort.FULL or not backend:
        return ""
    if "/commands/" in path or item.path.stem == "test_workload_killed":
        return "" if item.path.stem in ASK_EACH else item.nodeid.replace(backend, "")
    return item.nodeid.partition("[")[0] + backend if "/workloads/" in path else ""


def is_further_form(item: pytest.Item) -> bool:
    """Tell whether a case repeats one on replicas in another form: compiled by XLA, or inside a step of the user's."""
    return not effort.FULL and item.path.stem == "test_replicas" and form_of(item) in {"inside", "max"}
