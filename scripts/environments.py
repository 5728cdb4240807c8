"""What each environment of the noxfile runs of the tests, as options of pytest. CONTRIBUTING.md says why."""

from __future__ import annotations

import os

SUITE = "unifiedamp/conformance/suite"
WITHOUT_RANKS = ("--ignore", f"{SUITE}/test_ranks.py")  # it starts many processes
FULL = os.environ.get("UNIFIEDAMP_TEST_EFFORT") == "full"
# What the main environment proves once need not be proved again in the others: the commands and what they compute
# with, what `unifiedamp train`, `migrate` and `report` read and refuse, the layout of the sources, workers of `train`,
# and what happens to a process and its files when it is killed. That a saved run goes on, and that a migrated file
# trains, is each one's to prove.
PROVED = ["commands", "compare_parts", "core/test_structure.py", "forecasts"]
PROVED += [f"workloads/test_{name}.py" for name in ("bad_files", "lost_workers", "workers_train")]
PROVED += [f"workloads/test_workload_{name}.py" for name in ("hostile", "killed", "settings")]
PROVED += [f"migrate/test_{name}.py" for name in ("any_python", "bounds", "command", "growth", "refused_listings")]
PROVED += [f"migrate/test_{name}_refused.py" for name in ("keras", "torch")]
PROVED += [f"test_{name}.py" for name in ("author_path", "benchmarks", "checkpoint_file", "contributing")]
PROVED += [f"test_{name}.py" for name in ("doc_commands", "killed_training", "kit", "kit_faults", "kit_ranks")]
PROVED += [f"test_{name}.py" for name in ("mutants", "report_hostile", "time_limits")]
PROVED += ["on_mxnet/test_rank_mutants.py"]
# The MXNet of keras2 is that of main: of its tests, those on_mxnet in one process run there, on an older numpy.
MXNET_PROVED = [
    part
    for name in (
        "compat/test_mxnet_amp", "migrate/test_mxnet", "migrate/test_mxnet_corpus", "on_mxnet/test_dist_conditions",
        "on_mxnet/test_launched_by_dmlc", "on_mxnet/test_worker_mutants",
    )
    for part in ("--ignore", f"tests/{name}.py")
]  # fmt: skip
for name in ("resnet50_in_gluon", "conversion_for_inference", "workers_of_a_kvstore_train_the_model_of_one"):
    MXNET_PROVED += ["--deselect", f"tests/examples/test_examples.py::test_{name}"]
WITHOUT_PROVED = [part for path in PROVED for part in ("--ignore", f"tests/{path}")]


def in_sample(*forms: str) -> tuple[str, ...]:
    """Return the options by which one case of each test, or of every Nth, runs in these forms; none for `full`."""
    return () if FULL else tuple(part for form in forms for part in ("--amp-sample", form))


# All cases run eagerly. Every test runs compiled, in one of its cases; every third one in further forms.
COMPILED = in_sample("compiled", "default", "max=3", "xla=3", "eager-on-device=3")
LESS = ("--proved-elsewhere", "--sample-backends", *COMPILED, *WITHOUT_PROVED)
EAGER = ("--proved-elsewhere", "--sample-suite", "--amp-form", "eager")
SUITE_ONLY = (*EAGER, SUITE, *WITHOUT_RANKS, "tests/test_checkpoint_file.py")
SOME = (*SUITE_ONLY, "--ignore", "tests/core/test_structure.py", "tests/core")
KERAS2 = {"keras2": (SUITE, "tests/test_declared.py"), "keras2_tests": ("tests",)}
"""Name of a report → what a process of ``tests_keras2`` runs. A file of ``tests`` brings its conftest's options."""
