"""The process of a worker: ``python -m unifiedamp.workloads.worker_process package.module:make``."""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from typing import Any

from unifiedamp.errors import AmpError
from unifiedamp.workloads.workers import Handle, OutOfMemory, ReportProgress


def serve(target: str) -> None:
    """Answer requests until the parent is gone."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    # The pipe to the parent is kept aside; whatever prints to file descriptor 1 writes to the standard error.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    handle: Handle | None = None
    process = os.getpid()
    for line in sys.stdin:
        try:
            handle = handle or _make(target, lambda value: send({"progress": value}))
            message = {"answer": handle(json.loads(line))}
        except Exception as error:
            message = _failure(error)
        if os.getpid() != process:  # a library has forked, and this is the copy: one answers
            os._exit(0)
        send(message)


def _end_with(parent: int) -> None:
    """End this process once its parent is gone: a parent that was killed closes nothing."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _make(target: str, report_progress: ReportProgress) -> Handle:
    module, _, name = target.partition(":")
    made: Handle = getattr(importlib.import_module(module), name)(report_progress)
    return made


def _failure(error: Exception) -> dict[str, Any]:
    said = " ".join(str(error).split()) or "no message"
    said += "".join(f" ({note})" for note in getattr(error, "__notes__", ()) if "\n" not in note)[:300]
    name = type(error).__name__
    if isinstance(error, AmpError):
        return {"failed": said, "kind": "refused", "error": name}
    if isinstance(error, OutOfMemory):
        return {"failed": said, "kind": "memory", "error": name}
    return {"failed": f"{name}: {said}"[:600], "kind": "error", "error": name}


if __name__ == "__main__":
    serve(sys.argv[1])
