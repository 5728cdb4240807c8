"""Where and how a result came to be: machine, versions, date, command."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path

from .. import machine
from ..config import plugins


def about(title: str, config: Path) -> dict[str, str]:
    """Return title, recipe, machine, versions, date and command, each one line of text."""
    cpu = machine.cpu()
    parts = [f"{cpu.name}, {os.cpu_count()} cores", ", ".join(cpu.units) or "no 16-bit units"]
    parts += [gpu.name for gpu in machine.gpus()]
    infos = plugins.available_backends().values()
    versions = [f"{info.plugin.framework} {info.version}" for info in infos if info.plugin and info.installed]
    return {
        "title": title,
        "recipe": config.name,
        "machine": ", ".join(parts),
        "versions": ", ".join([f"Python {platform.python_version()}", *versions]),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(["unifiedamp", *sys.argv[1:]]),
    }
