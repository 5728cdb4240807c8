"""A typed workload passes ``mypy --strict`` against the protocol, and one with a wrong part does not."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("mypy")

TYPED = """
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import unifiedamp as ua
from unifiedamp.workloads import Workload

class Model: ...
class Optimizer: ...
Batch = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]

@dataclass
class Typed:
    hidden: int = 8
    backends = ("torch",)

    def make_model(self) -> Model: return Model()
    def make_optimizer(self, model: Model) -> Optimizer: return Optimizer()
    def loss(self, net: Model, batch: Batch) -> float: return 0.0
    def batches(self, epoch: int) -> Iterator[Batch]: yield np.zeros(3, np.float32), np.zeros(3, np.int64)
    def evaluate(self, amp: ua.Amp, model: Model) -> float: return 1.0

workload: Workload = Typed(hidden=3)

class Inherited(Workload):
    def make_model(self) -> Model: return Model()
    def make_optimizer(self, model: Model, /) -> Optimizer: return Optimizer()
    def loss(self, model: Model, batch: Batch, /) -> float: return 0.0
    def batches(self, epoch: int, /) -> list[Batch]: return []

other: Workload = Inherited()
"""


def check(tmp_path, text):
    path = tmp_path / "typed_file.py"
    path.write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
    return [line for line in done.stdout.splitlines() if "typed_file.py" in line and "error:" in line]


def test_a_typed_workload_passes_and_a_wrong_one_does_not(tmp_path):
    assert check(tmp_path, TYPED) == []
    (said,) = check(tmp_path, TYPED.replace("def batches(self, epoch: int) -> Iterator", "def batch(self) -> Iterator"))
    assert "Incompatible types in assignment" in said
