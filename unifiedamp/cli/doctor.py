"""``unifiedamp doctor``: what is installed, what the machine has, and which policy runs and helps where."""

from __future__ import annotations

import functools
import platform
from collections.abc import Collection
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.status import Status

from .. import __version__, machine
from ..config import plugins
from ..visible import plain
from ..workloads import float8_width, launchers
from ..workloads.probe import verdict
from ..workloads.workers import Worker, WorkerError
from .doctor_ranks import show_ranks
from .errors import NOT_ALL_WELL
from .show import console, print_json, say, table

PROBE = "unifiedamp.workloads.probe:make"
TIMEOUT = 300.0
"""Seconds in which a backend is imported and answers, or times one policy."""


def doctor(
    measure: Annotated[
        bool, typer.Option("--measure", help="Time a training step under each policy against float32, interleaved.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds that a backend may say nothing before it counts as hung.")
    ] = TIMEOUT,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Say what is installed, what this machine has, and for each backend and policy: runs, gains nothing, or cannot.

    Example: unifiedamp doctor --measure

    Each backend is asked in a separate process: one that crashes or hangs costs its own row.

    Exit code 0: all is well; 1: no framework is installed, or one failed to answer, or a policy failed when measured.
    """
    found = examine(measure, console(stderr=True), timeout)
    print_json(found) if json else _show(found)
    if not _well(found["backends"].values()):
        raise typer.Exit(NOT_ALL_WELL)


def _well(backends: Collection[dict[str, Any]]) -> bool:
    failed = [one for one in backends if one["failed"] or any("failed" in row for row in one.get("speed", {}).values())]
    return not failed and any(one["installed"] for one in backends)


def examine(measure: bool, progress: Console, timeout: float = TIMEOUT) -> dict[str, Any]:
    """Return everything that ``doctor`` reports, as plain values."""
    return {
        "unifiedamp": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": asdict(machine.cpu()),
        "gpus": [{**asdict(gpu), "tensor_cores": gpu.tensor_cores} for gpu in machine.gpus()],
        "launchers": launchers.find_launchers(),
        "launched_by": launchers.launched_by(),
        "links": dict(zip(("pairs", "reason"), launchers.gpu_links(), strict=True)),
        "backends": {name: _backend(name, measure, progress, timeout) for name in plugins.backend_entry_points()},
    }


def _backend(name: str, measure: bool, progress: Console, timeout: float) -> dict[str, Any]:
    """Return a backend's row. Its plugin may print, exit or hang, so that only other processes import it."""
    found: dict[str, Any] = {"framework": None, "installed": False, "version": None, "install": ""}
    with progress.status(plain(f"asking {name}")) as status:
        try:
            with Worker(PROBE) as worker:
                found |= worker.ask({"describe": name}, timeout=timeout)
            sharing = found.pop("sharing")
            if not found["installed"]:
                return found
            with Worker(PROBE, sharing) as worker:
                request = {"backend": name, "measure": measure}
                on_progress = functools.partial(_timing, status, name)
                return {**found, **worker.ask(request, on_progress, timeout)}
        except WorkerError as error:
            return {**found, "failed": str(error), "reason": str(error)}


def _timing(status: Status, name: str, policy: str) -> None:
    status.update(plain(f"timing {name}, {policy}"))


def _show(found: dict[str, Any]) -> None:
    out = console()
    say(out, f"unifiedamp {found['unifiedamp']}, Python {found['python']}, {found['system']}")
    say(out, _cpu_line(found["cpu"]))
    for gpu in found["gpus"]:
        say(out, _gpu_line(gpu))
    if not found["gpus"]:
        out.print("GPU: the CUDA driver sees none")
    show_ranks(out, found)
    columns: tuple[str, ...] = ("backend", "framework", "version", "device", "state")
    out.print(table("Frameworks", columns, _frameworks(found), verdicts=("state",)))
    answered = {name: one for name, one in found["backends"].items() if "policies" in one}
    if answered:
        measured = any(one["speed"] for one in answered.values())
        columns = ("backend", "policy", "verdict", "why") + (("ms per step", "against float32") if measured else ())
        rows = _policies(answered, measured)
        out.print(table("Policies", columns, rows, right=("ms per step",), verdicts=("verdict",), heads=2))
        for name, one in answered.items():
            say(out, f"{name} does {one['best']} best: {one['best_reason']}")
            if one.get("float8"):
                say(out, f"{name}: {float8_width.advice(one['float8'])}")
    else:
        ways = "; ".join(one["install"] for one in found["backends"].values() if one["install"])
        say(out, f"No framework answered. Install one: {ways or 'no backend is registered'}")


def _cpu_line(cpu: dict[str, Any]) -> str:
    units = ", ".join(cpu["units"]) or "no 16-bit units (AVX512-BF16, AMX, AVX512-FP16)"
    return f"CPU: {cpu['name']}: {cpu['vectors'] + ', ' if cpu['vectors'] else ''}{units}"


def _gpu_line(gpu: dict[str, Any]) -> str:
    cores = "Tensor Cores for " + ", ".join(gpu["tensor_cores"]) if gpu["tensor_cores"] else "no Tensor Cores"
    major, minor = gpu["compute_capability"]
    return f"GPU: {gpu['name']}, {gpu['memory'] / 2**30:.0f} GiB, compute capability {major}.{minor}: {cores}"


def _frameworks(found: dict[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, one in found["backends"].items():
        state = f"failed: {one['failed']}" if one["failed"] else one["reason"] or "works"
        rows.append((name, one["framework"] or "-", one["version"] or "-", one.get("device", "-"), state))
    return rows


def _policies(answered: dict[str, Any], measured: bool) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, one in answered.items():
        for policy, answer in one["policies"].items():
            row = (name, policy, verdict(answer), answer["reason"])
            rows.append(row + (_speed(one["speed"].get(policy)) if measured else ()))
    return rows


def _speed(speed: dict[str, Any] | None) -> tuple[str, str]:
    if speed is None:
        return "-", "-"
    if "failed" in speed:
        return "-", f"failed: {speed['failed']}"
    if "value" not in speed:
        return f"{speed['ms']:.1f}", "1"
    return f"{speed['ms']:.1f}", f"{speed['value']:.2f}x ({speed['low']:.2f} to {speed['high']:.2f})"
