"""Which process of a measured run is counted: one, whatever number the script starts."""

from __future__ import annotations

import json
import os
from pathlib import Path

RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "DMLC_WORKER_ID")
"""Variables by which launchers tell a process its rank."""
OWNER = "owner"


def leads() -> bool:
    """Return whether this process is the first of those that a launcher started, or has no launcher."""
    for name in RANKS:
        if (rank := os.environ.get(name, "")).isdigit():
            return int(rank) == 0
    return _leads_tensorflow(os.environ.get("TF_CONFIG", ""))


def _leads_tensorflow(text: str) -> bool:
    try:
        task = json.loads(text)["task"]
        return int(task["index"]) == 0 and task["type"] in ("chief", "worker")
    except (ValueError, TypeError, KeyError):
        return True


def claim(folder: Path) -> bool:
    """Return whether this process is the one that is counted: the first of the leading ones that trains."""
    if not leads():
        return False
    try:
        with (folder / OWNER).open("x", encoding="utf-8") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return False
    return True
