"""The rows of a comparison: what is to be run, and what came out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..interleaved import ratio

BASELINE = "float32"
SCRIPT = -1
"""The batch size of a task that runs a script: the script's, which is not known."""


@dataclass(frozen=True)
class Task:
    """One run.

    Attributes:
        backend, policy: by name; the policy as ``Policy.parse`` reads it.
        compile: "off", "default" or "max", of ``amp.compile``.
        batch_size: samples per batch; 0 stands for the largest that fits, which is yet to be found, None for the
            workload's own, which no setting names.
    """

    backend: str
    policy: str
    compile: str
    batch_size: int | None

    def __str__(self) -> str:
        return f"{self.backend}, {self.policy}, {self.circumstances}"

    @property
    def circumstances(self) -> str:
        """Compile mode and batch size, in words."""
        mode = f"compile {self.compile or 'as in the script'}"
        return mode if self.batch_size is None else f"{mode}, {self.size}"

    @property
    def size(self) -> str:
        """The batch size in words."""
        if self.batch_size == SCRIPT:
            return "the script's batch size"
        return f"batch size {self.batch_size or 'the largest that fits'}"

    @property
    def group(self) -> tuple[str, str, int | None]:
        """What runs that are compared with each other share."""
        return (self.backend, self.compile, self.batch_size)


@dataclass
class Row:
    """A run and what came out of it; None where there is nothing (yet).

    Attributes:
        state: "waiting", "trained" (quality is there, speed is not), "done", "refused" (cannot run here) or "failed".
        reason: why it was refused or failed.
        notes: warnings of the session.
        batch_size: what was run; that of the task, the largest that fits, or None.
        unit: what is counted per second; "steps" for a script, whose batch size is not known.
        samples_per_second: of training, in ``unit``, the median over the rounds; compiling is not in it.
        compile_seconds: what the step's first calls took beyond usual ones: tracing, compiling, first allocations.
        rates: of each round.
        ratio, ratio_low, ratio_high: how many times faster than ``baseline``: the median, smallest and largest over the
            rounds.
        baseline: what the ratio is to, in words.
        peak_memory: bytes; ``memory_of`` says of what: "device" (the framework's own count) or "process".
        loss: the mean over the last epoch. accuracy, precision, recall, f1: of the workload's evaluation.
        test_images: how many samples those are of.
        scores: what else the workload's evaluation returned, by name; higher is better.
        scale, applied_steps, skipped_steps: of the session at the end.
        losses: of each batch. scales: [step, scale, steps skipped until then].
        tensor_cores: what ``--profile`` found.
    """

    task: Task
    state: str = "waiting"
    reason: str = ""
    notes: list[str] = field(default_factory=list)
    batch_size: int | None = 0
    unit: str = "samples"
    samples_per_second: float | None = None
    compile_seconds: float | None = None
    rates: list[float] = field(default_factory=list)
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    baseline: str = ""
    peak_memory: int | None = None
    memory_of: str = ""
    loss: float | None = None
    accuracy: float | None = None
    precision: float | None = None
    recall: float | None = None
    f1: float | None = None
    test_images: int = 0
    scores: dict[str, float | None] = field(default_factory=dict)
    scale: float | None = None
    applied_steps: int | None = None
    skipped_steps: int | None = None
    losses: list[float | None] = field(default_factory=list)
    scales: list[list[float]] = field(default_factory=list)
    tensor_cores: dict[str, Any] | None = None

    @property
    def label(self) -> str:
        """What identifies this row, in few words."""
        size = self.batch_size or self.task.batch_size
        known = () if size is None or size == SCRIPT else (str(size or "largest"),)
        return " ".join(filter(None, [self.task.backend, self.task.policy, self.task.compile, *known]))

    @property
    def is_baseline(self) -> bool:
        """Whether others are compared with it."""
        return self.task.policy == BASELINE

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        own = {key: value for key, value in vars(self).items() if key not in ("task", "batch_size")}
        task = self.task
        head = {"backend": task.backend, "policy": task.policy, "compile": task.compile}
        known = None if task.batch_size == SCRIPT else self.batch_size or task.batch_size
        size = {"batch_size": known, "largest_batch_size": task.batch_size == 0}
        return {**head, **size, **own}


def tasks(
    backends: Iterable[str], policies: Sequence[str], modes: Sequence[str], sizes: Sequence[int | None]
) -> list[list[Task]]:
    """Return the runs, in groups of what is compared with each other; a group holds one run per policy."""
    return [
        [Task(backend, policy, mode, size) for policy in policies]
        for backend in backends
        for mode in modes
        for size in sizes
    ]


def set_ratios(group: Sequence[Row]) -> None:
    """Fill in the ratios to the float32 row of the same group."""
    baseline = next((row for row in group if row.is_baseline and row.rates), None)
    if baseline is None:
        return
    for row in group:
        if row.rates and len(row.rates) == len(baseline.rates):
            found = ratio(row.rates, baseline.rates)
            row.ratio, row.ratio_low, row.ratio_high = found.value, found.low, found.high
            known = row.task.batch_size != SCRIPT and baseline.batch_size
            row.baseline = f"{BASELINE}, batch size {baseline.batch_size}" if known else BASELINE
