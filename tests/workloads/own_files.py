"""Workload files as users write them: ``unifiedamp init`` wrote them, and the tests change a line."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from workload_runs import quiet

from unifiedamp.cli.init import starter
from unifiedamp.workloads.configuration import read_settings, read_source
from unifiedamp.workloads.training.loop import train
from unifiedamp.workloads.training.run import Run

_numbers = itertools.count()
ADAM = {
    "torch": ("torch.optim.SGD(model.parameters(), self.learning_rate, momentum=0.9)",
              "torch.optim.Adam(model.parameters(), self.learning_rate)"),
    "tensorflow": ("keras.optimizers.SGD(self.learning_rate, momentum=0.9)",
                   "keras.optimizers.Adam(self.learning_rate)"),
    "mxnet": ('settings = {"learning_rate": self.learning_rate, "momentum": 0.9}\n'
              '        return gluon.Trainer(model.collect_params(), "sgd", settings, update_on_kvstore=False)',
              'settings = {"learning_rate": self.learning_rate}\n'
              '        return gluon.Trainer(model.collect_params(), "adam", settings, update_on_kvstore=False)'),
}  # fmt: skip
"""Backend → what to replace in its starter, and with what."""


def write(folder: Path, backend: str, *changes: tuple[str, str], name: str | None = None) -> Path:
    """Write the starter of a backend, changed; each under a new name, as a process imports a file once."""
    text = starter(backend)
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    path = folder / (name or f"own_{backend}_{next(_numbers)}.py")
    path.write_text(text, encoding="utf-8")
    return path


def run(path: Path | str, out: Path, policy: str = "float32", *, resume: bool = False, **options: Any) -> Run:
    """Train a file; ``options`` are of ``[train]``, or the tables ``amp`` and ``given``."""
    amp, given = options.pop("amp", {}), options.pop("given", {})
    settings = read_settings(
        read_source(str(path)), out, amp={"policy": policy, **amp}, train={"log_every": 1, **options}, given=given
    )
    return train(settings, quiet(), resume=resume)
