"""What a workload's file holds, asked in a separate process: a file that hangs or crashes costs the command nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from .configuration import Source
from .definition import settings
from .definition.loading import define, plain
from .definition.reference import Reference
from .workers import Handle, ReportProgress, Worker, WorkerError

SHORTEST = 30.0
"""Seconds that importing a file, and the frameworks that it imports, may take at least."""
MODULE = "unifiedamp.workloads.describe:make"


class Description(BaseModel):
    """What a command needs to know of a workload before it trains it.

    Attributes:
        name: the file's name, with the workload's where it has one.
        settings: name → the value in force, as JSON has it.
        backends: those to run it under where none is named; None for all.
    """

    model_config = ConfigDict(strict=True)
    name: str
    settings: dict[str, Any]
    backends: list[str] | None


def make(_report_progress: ReportProgress) -> Handle:
    """Return the handler of ``{"path": …, "name": …, "given": …}``."""

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        definition = define(Reference(Path(request["path"]), request["name"]))
        chosen = settings.values(definition.settings, request["given"], definition.name)
        known = {name: plain(chosen.get(name, definition.default(name))) for name in definition.settings}
        return {"name": definition.name, "settings": known, "backends": definition.usual_backends}

    return handle


def describe(source: Source, given: Mapping[str, Any], timeout: float) -> Description:
    """Return what the file holds.

    Args:
        source: what the command line names.
        given: settings of the workload; its configuration's included.
        timeout: seconds after which importing it counts as hung.

    Raises:
        WorkerError: it cannot be imported, holds no workload, or hangs; a setting is wrong.
    """
    reference = source.workload
    request = {"path": str(reference.path), "name": reference.name, "given": dict(given)}
    with Worker(MODULE) as worker:
        try:
            answer = worker.ask(request, timeout=max(timeout, SHORTEST))
        except WorkerError as error:
            if error.kind == "refused":
                raise
            raise WorkerError(f"{reference}, when imported: {error}", error.kind, error.error) from None
        try:
            return Description.model_validate(answer)
        except ValidationError:
            raise worker.garbage(answer) from None
