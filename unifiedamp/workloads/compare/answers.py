"""What a job answers, checked: an answer that makes no sense is that run's failure, and no other's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ..workers import ReportProgress, Worker

A = TypeVar("A")
Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]


class Answer(BaseModel):
    """Plain values of the right types; numbers are finite."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class Begun(Answer):
    """To ``begin``: the samples of an epoch (None: not known), batches per optimizer step, and warnings."""

    samples: Annotated[int, Field(ge=1)] | None
    window: int = Field(ge=1)
    notes: list[str]


class Trained(Answer):
    """To ``train``: the attributes of a ``Row`` with these names."""

    loss: float | None
    accuracy: float | None
    precision: float | None
    recall: float | None
    f1: float | None
    test_images: Count
    scores: dict[str, float | None] = {}
    compile_seconds: Seconds | None = None
    losses: list[float | None]
    scales: list[tuple[float, float, float] | list[float]]
    scale: float
    applied_steps: Count
    skipped_steps: Count
    peak_memory: int | None
    memory_of: str


class Turn(Answer):
    """To ``turn``."""

    seconds: float = Field(gt=0)
    samples: int = Field(ge=1)


class Profile(Answer):
    """To ``profile``: kernels by name, in seconds, or the reason why there are none."""

    kernels: dict[str, float] | None = None
    reason: str = ""


class Probe(Answer):
    """To ``probe``: see ``Job.probe``."""

    losses: list[float | None]
    skipped: list[int]
    stopped: str
    layers: list[str]
    scale: float


class Counted(Answer):
    """To ``count``: see ``ForecastRun.counted``."""

    format: str
    version: int
    about: dict[str, Any]
    layers: list[dict[str, Any]]


def ask(
    worker: Worker,
    answer: type[A],
    request: Mapping[str, Any],
    timeout: float | None,
    on_progress: ReportProgress | None = None,
) -> A:
    """Return a job's answer.

    Args:
        worker: its process.
        answer: what it must be.
        request, on_progress, timeout: as for ``Worker.ask``.

    Raises:
        WorkerError: it failed, hung, or answered something else.
    """
    found = worker.ask(request, on_progress, timeout)
    try:
        return TypeAdapter(answer).validate_python(found)
    except ValidationError:
        raise worker.garbage(found) from None
