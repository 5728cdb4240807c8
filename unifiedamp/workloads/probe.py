"""What one backend supports on this machine, asked in a separate process (see ``workers.py``), and how fast it is."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ..backend import Capabilities, Support
from ..config import plugins
from ..errors import AmpError, AmpWarning
from ..names import CompileMode
from ..session import Amp
from . import float8_width
from .interleaved import interleave, ratio
from .workers import Handle, ReportProgress

TURN_SECONDS = 0.3
ROUNDS = 5
WORTH_IT = 1.05
"""How many times faster than float32 a policy must be to be recommended; two this close are as fast as each other."""
SIZES = {True: (256, 1024), False: (4096, 4096)}
"""On the CPU? → (batch, width) of the three dense layers that are trained: so large that only their products count."""


def make(report_progress: ReportProgress) -> Handle:
    """Return the handler of ``{"backend": name, "measure": bool}``, and of ``{"describe": name}``."""

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        if "describe" in request:
            return describe(request["describe"])
        return probe(request["backend"], request["measure"], report_progress)

    return handle


def describe(name: str) -> dict[str, Any]:
    """Return what the plugin of a backend says, as plain values; imports the plugin, and no framework."""
    info = plugins.backend_info(name)
    return {
        "framework": info.plugin.framework if info.plugin else None,
        "installed": info.installed,
        "version": info.version,
        # Without a plugin it is the plugin that is broken; a framework that is merely absent is no failure.
        "failed": info.reason if info.plugin is None else "",
        "reason": info.reason,
        "install": info.install,
        "sharing": dict(info.plugin.sharing) if info.plugin else {},
    }


def probe(name: str, measured: bool, report_progress: ReportProgress) -> dict[str, Any]:
    """Return a backend's answers as plain values; ``speed`` holds what was measured, by policy.

    Args:
        name: a backend whose framework is installed.
        measured: train three dense layers under each policy that runs, interleaved.
        report_progress: called with each policy before it is measured.
    """
    warnings.simplefilter("ignore", AmpWarning)  # what they say is in the answers
    backend_class = plugins.load_backend(name)
    capabilities = plugins.backend_info(name).capabilities
    speed = measure(name, capabilities, report_progress) if measured else {}
    widths = float8_widths(name, report_progress) if measured and multiplies_float8(name) else None
    declared, reason = backend_class.default_policy(None)
    best, why = recommended(declared, reason, speed)
    return {
        "device": capabilities.device,
        "best": best,
        "best_reason": why,
        "policies": {policy: asdict(answer) for policy, answer in capabilities.policies.items()},
        "features": {feature: asdict(answer) for feature, answer in capabilities.features.items()},
        "communication": dict(backend_class.communication()),
        "speed": speed,
        "float8": widths,
    }


def recommended(declared: str, why: str, speed: Mapping[str, Any]) -> tuple[str, str]:
    """Return the policy to use and the reason; measurements override the recommendation for the device.

    Args:
        declared: the backend's default policy.
        why: its reason.
        speed: what :func:`measure` returns; may be empty.
    """
    ratios = {name: one["value"] for name, one in speed.items() if name.startswith("mixed_") and "value" in one}
    if not ratios:
        return declared, why
    faster = {name: value for name, value in ratios.items() if value >= WORTH_IT and speed[name]["low"] > 1}
    if not faster:
        figures = ", ".join(f"{name} {value:.2f}x" for name, value in ratios.items())
        return "float32", f"nothing measured is faster by {WORTH_IT - 1:.0%} ({figures} the speed of float32)"
    fastest = max(faster, key=lambda name: faster[name])
    chosen = declared if faster.get(declared, 0.0) * WORTH_IT >= faster[fastest] else fastest
    return chosen, f"measured {faster[chosen]:.2f}x the speed of float32" + (f"; {why}" if chosen == declared else "")


def measure(name: str, capabilities: Capabilities, report_progress: ReportProgress) -> dict[str, Any]:
    """Return policy → milliseconds per step and ratio to float32 (above 1: faster), or why it failed."""
    on_cpu = capabilities.device.lower().startswith("cpu")
    found: dict[str, Any] = {}
    runs: dict[str, Callable[[], float]] = {}
    for policy, answer in capabilities.policies.items():
        if not answer:
            continue
        report_progress(policy)
        try:
            runs[policy] = _turn(_training(name, policy, *SIZES[on_cpu]))
        except Exception as error:
            found[policy] = {"failed": f"{type(error).__name__}: {error}"[:300]}
    rates = interleave(runs, ROUNDS, lambda policy, error: found.update({policy: {"failed": str(error)}}))
    return {**found, **speeds(rates)}


def multiplies_float8(name: str) -> bool:
    """Return whether a backend runs float8 here without emulation; sessions refuse it elsewhere."""
    try:
        Amp(name, "mixed_float8").close()
    except AmpError:
        return False
    return True


def float8_widths(name: str, report_progress: ReportProgress) -> dict[str, Any]:
    """Return from which width of layers on float8 gains, see ``float8_width.measure``; steps are compiled."""

    def turn(policy: str, rows: int, width: int) -> Callable[[], float]:
        report_progress(f"{policy}, width {width}")
        return _turn(_training(name, policy, rows, width, "max"))

    return float8_width.measure(turn, ROUNDS)


def speeds(rates: Mapping[str, list[float]]) -> dict[str, Any]:
    """Return what steps per second of each policy come to."""
    found: dict[str, Any] = {}
    for policy, each in rates.items():
        found[policy] = {"ms": 1e3 / sorted(each)[len(each) // 2]}
        if "float32" in rates and policy != "float32":
            found[policy] |= {key: round(value, 3) for key, value in asdict(ratio(each, rates["float32"])).items()}
    return found


def _training(name: str, policy: str, batch: int, width: int, compiled: CompileMode = "off") -> Callable[[int], float]:
    """Return a function that trains some steps and returns the seconds that they took."""
    import numpy as np

    from ..conformance.harness import load_harness

    harness, rng = load_harness(name), np.random.default_rng(0)
    layers = [(rng.standard_normal((width, width), np.float32) / width**0.5, np.zeros(width, np.float32))] * 3
    amp = Amp(name, policy, compile=compiled)
    with amp.scope():
        model = harness.mlp(layers)
        optimizer = harness.sgd([model], 1e-3)
    model, optimizer = amp.prepare(model, optimizer)
    x = amp.to_native(rng.standard_normal((batch, width), np.float32))
    labels = amp.to_native(rng.integers(0, width, batch).astype(np.int32))

    def one() -> Any:
        loss = amp.backward(lambda: harness.cross_entropy(model(x), labels), optimizer)
        amp.step(optimizer)
        return loss

    step = one if compiled == "off" else amp.compile(one)

    def run(steps: int) -> float:
        # From one loss read to the next lie exactly ``steps`` whole steps, on devices that work ahead as well.
        start = time.perf_counter()
        for _ in range(steps):
            loss = step()
        amp.to_numpy(loss)
        return time.perf_counter() - start

    return run


def _turn(run: Callable[[int], float]) -> Callable[[], float]:
    """Return a turn of about ``TURN_SECONDS`` that gives steps per second; warmed up."""
    run(5)  # kernels are chosen, and compiled steps captured
    steps = max(1, round(TURN_SECONDS / run(1)))

    def turn() -> float:
        try:
            return steps / run(steps)
        except Exception as error:
            raise AmpError(f"{type(error).__name__}: {error}"[:300]) from error

    return turn


def verdict(answer: Mapping[str, Any] | Support) -> str:
    """Return an answer on a policy as words: "runs", "runs but gains nothing" or "cannot"."""
    ok, helps = (answer.ok, answer.helps) if isinstance(answer, Support) else (answer["ok"], answer.get("helps"))
    if not ok:
        return "cannot"
    return "runs but gains nothing" if helps is False else "runs"
