"""What the server of ``forked`` imports once, so that no process that it forks spends the seconds again.

MXNet is not among the frameworks: it is imported in a second, and starts its threads anew at each fork.
"""

import contextlib
import gc
import importlib
import importlib.util
import os

from effort import QUICK

KIT = ("pytest", "_pytest.doctest", "hypothesis", "numpy", "rich.console", "unifiedamp.cli", "toy.harness")
FRAMEWORKS = (
    "torch._inductor.compile_fx", "torch.distributed.fsdp", "unifiedamp_torch.backend", "examples.models.torch_models",
    "tensorflow", "unifiedamp_tensorflow.backend", "examples.models.tensorflow_models",
    "unifiedamp.workloads.compare.job", "examples.image_classifier", "sklearn.datasets", "matplotlib.pyplot",
)  # fmt: skip

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's BLAS starts its threads at import
for name in KIT if QUICK else KIT + FRAMEWORKS:
    if importlib.util.find_spec(name.partition(".")[0]) is not None:
        with contextlib.suppress(ImportError):  # its framework is not installed, or too old to have it
            importlib.import_module(name)

HAS_THREADS = len(os.listdir("/proc/self/task")) > 1
"""Threads do not survive a fork: a process forked beside some starts Python anew."""
gc.freeze()  # or each process would copy all that is here when it first collects
