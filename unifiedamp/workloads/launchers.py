"""What starts processes on this machine, what started this one, and how its GPUs are linked."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from ..backend.launch import read_launch
from ..errors import ConfigError

LAUNCHERS = ("torchrun", "srun", "mpirun", "launch.py", "ray")
VARIABLES = re.compile(
    r"(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT|TF_CONFIG|TORCHELASTIC_\w+|SLURM_(PROCID|LOCALID|STEP_\w+)"
    r"|OMPI_COMM_WORLD_\w+|DMLC_\w+)"
)
"""Environment variables by which launchers tell a process its place."""
LINKS = {"NV": "NVLink", "PIX": "PCIe", "PXB": "PCIe", "PHB": "PCIe", "NODE": "PCIe", "SYS": "PCIe across sockets"}
"""What ``nvidia-smi topo -m`` prints → the link, of its legend."""
SECONDS = 10.0


def find_launchers() -> dict[str, str | None]:
    """Return launcher → the path of its command; None where it is not installed. ``ray`` may be a package alone."""
    found: dict[str, str | None] = {name: shutil.which(name) for name in LAUNCHERS}
    if found["ray"] is None and find_spec("ray") is not None:
        found["ray"] = "python package"
    return found


def launched_by(environment: Mapping[str, str] | None = None) -> dict[str, Any] | None:
    """Return what started this process as one of several, and its variables; None for a process alone."""
    environment = os.environ if environment is None else environment
    said = {name: value for name, value in sorted(environment.items()) if VARIABLES.fullmatch(name)}
    try:
        launch = read_launch(environment)
    except ConfigError as error:
        return {"launcher": "unknown", "error": str(error), "variables": said}
    if launch is None:
        return None
    found = {"launcher": launch.launcher, "rank": launch.rank, "size": launch.size, "variables": said}
    return found if launch.role == "worker" else {**found, "role": launch.role}


def gpu_links(command: str = "nvidia-smi", seconds: float = SECONDS) -> tuple[list[dict[str, Any]], str]:
    """Return the links between pairs of GPUs as ``nvidia-smi topo -m`` prints them, or none and the reason.

    Args:
        command: the program.
        seconds: its time limit.
    """
    path = shutil.which(command)
    if path is None:
        return [], f"{command} is not installed"
    try:
        done = subprocess.run([path, "topo", "-m"], capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"{command} topo -m: {error}"
    if done.returncode:
        return [], f"{command} topo -m ended with exit code {done.returncode}"
    return parse_links(done.stdout), ""


def parse_links(text: str) -> list[dict[str, Any]]:
    """Read the matrix of ``nvidia-smi topo -m``: "gpus", "code" (NV18, PIX, ...) and "link" of each pair."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)  # the heading is underlined
    rows = [line.split() for line in text.splitlines() if line.lstrip().startswith("GPU")]
    if not rows:
        return []
    columns, found = rows[0], []
    for row in rows[1:]:
        first = int(row[0].removeprefix("GPU"))
        for name, code in zip(columns, row[1:], strict=False):
            second = name.removeprefix("GPU")
            if name.startswith("GPU") and second.isdigit() and int(second) > first:
                kind = code.rstrip("0123456789#")
                found.append({"gpus": [first, int(second)], "code": code, "link": LINKS.get(kind, code)})
    return found
