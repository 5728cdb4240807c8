"""Whether processes that a launcher has started anew resume: the checkpoint in their folder may be of an earlier run.

A launcher may start processes anew before their run has written a checkpoint. Until then a mark lies beside that of an
earlier run.
"""

from __future__ import annotations

from pathlib import Path

MARK = ".new_run"


def mark_earlier_run(checkpoint: Path) -> None:
    """Mark a checkpoint as that of an earlier run; call it once for a new run, before its processes work."""
    if checkpoint.exists():
        checkpoint.with_name(MARK).touch()
    else:
        remove_mark(checkpoint)


def remove_mark(checkpoint: Path) -> None:
    """Say that a checkpoint is of the present run. Idempotent."""
    checkpoint.with_name(MARK).unlink(missing_ok=True)


def is_of_this_run(checkpoint: Path) -> bool:
    """Return whether processes that were started anew go on from a checkpoint."""
    return checkpoint.exists() and not checkpoint.with_name(MARK).exists()
