"""What ``amp.record`` checks, and the header of a recording."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from .. import machine
from ..backend import Backend
from ..config import plugins
from ..errors import ConfigError, StepOrderError, UnsupportedError
from ..training.step_loop import StepLoop
from .ranks import MergedRanks
from .reading import FORMAT, VERSION
from .recorder import Recorder, begin
from .sinks import Record, open_sink


def start_recording(
    backend: Backend, loop: StepLoop, targets: Sequence[Any], every: int | None, activations: bool, compare: bool,
    states: bool = False,
) -> Recorder:  # fmt: skip
    """Return a recorder that has begun to record; see ``Amp.record``.

    Args:
        backend: the session's.
        loop: its steps, which the recorder then follows.
        targets: where records go.
        every: steps from one recorded step to the next; None records no steps.
        activations: also record the outputs of layers.
        compare: also record what ``unifiedamp diff`` compares.
        states: also count the values of weights and of optimizer states.
    """
    _check(backend, loop, targets, every)
    if states:
        _check_states(backend, every)
    if compare:
        _check_compare(backend, every, activations)
    state = backend.training.read_state()
    first = (state.applied_steps + state.skipped_steps) // max(1, len(loop.order.slots)) + 1
    header = dict(_header(backend, loop.order.accumulate_steps, every, first))
    ranks = MergedRanks(backend.recorder.messages() if every is not None else None)
    header |= {"compare": compare, "states": states}
    if compare:
        header |= {"ranks": ranks.count * backend.recorder.replicas(), "reduction": backend.recorder.reduction}
        header |= {"environment": _environment(), "settings": _settings(backend)}
    if every is not None:
        begin(backend, activations, compare)
    try:
        sinks = [open_sink(target) for target in targets if ranks.first]
        recorder = Recorder(
            backend, loop.monitor, sinks, every, first, activations, loop.scaling, header, ranks, compare,
            lambda: _ran(backend, loop), loop.owners, states,
        )  # fmt: skip
    except BaseException:
        if every is not None:
            backend.recorder.end()
        raise
    loop.listener = recorder
    return recorder


def _check(backend: Backend, loop: StepLoop, targets: Sequence[Any], every: int | None) -> None:
    support = backend.capabilities().feature("recording")
    if every is not None and not support:
        raise UnsupportedError(f"amp.record: backend {backend.name!r} cannot record: {support.reason}")
    if every is not None and (not isinstance(every, int) or isinstance(every, bool) or every < 1):
        raise ConfigError(f"amp.record: every must be a whole number of at least 1 or None, got {every!r}")
    if not targets:
        raise ConfigError("amp.record: where to? Give a path ('run.jsonl'), a sink or a function")
    if loop.listener is not None and not loop.listener.stopped:
        raise StepOrderError("amp.record: this session records already; stop() that recorder or forecast first")
    if not loop.order.slots:
        raise StepOrderError("amp.record: prepare a model and an optimizer first; there is nothing to record yet")


def _check_compare(backend: Backend, every: int | None, activations: bool) -> None:
    if every is None or not activations:
        raise ConfigError(
            "amp.record(compare=True) compares steps layer by layer: it needs every=n and activations=True"
        )
    if not backend.recorder.compares:
        raise UnsupportedError(
            f"amp.record(compare=True): backend {backend.name!r} records no sketches of tensors; leave compare out"
        )


def _check_states(backend: Backend, every: int | None) -> None:
    if every is None:
        raise ConfigError("amp.record(states=True) counts weights and optimizer states of recorded steps: give every=n")
    if not backend.recorder.records_states:
        raise UnsupportedError(
            f"amp.record(states=True): backend {backend.name!r} does not count weights and optimizer states; leave "
            "states out"
        )
    backend.recorder.states()  # refuses what it cannot count before training goes on


def _ran(backend: Backend, loop: StepLoop) -> str:
    """Return how a recorded step ran: "eager", "compiled", or "uncompiled" of a compiled loop."""
    if not loop.compiled:
        return "eager"
    return "uncompiled" if backend.recorder.runs_uncompiled else "compiled"


def _environment() -> dict[str, str]:
    """Return what else of the machine may make two runs differ."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": machine.cpu().name,
        "numpy": version("numpy"),
    }


def _settings(backend: Backend) -> list[list[str]]:
    """Return the session's plan: setting, value, native calls."""
    return [[row.setting, row.value, row.native] for row in backend.explain()]


def _header(backend: Backend, accumulate_steps: int, every: int | None, first_step: int) -> Record:
    plugin = plugins.load_plugin(backend.name)
    policy = backend.spec.policy
    return {
        "kind": "header",
        "format": FORMAT,
        "version": VERSION,
        "time": time.time(),
        "unifiedamp": version("unifiedamp"),
        "backend": backend.name,
        "framework": plugin.framework,
        "framework_version": plugins.installed_version(plugin),
        "device": backend.capabilities().device,
        "policy": str(policy),
        "compute_dtype": policy.compute_dtype,
        "param_dtype": policy.param_dtype,
        "loss_scale": str(backend.spec.loss_scale),
        "scale": backend.training.read_state().scale,
        "accumulate_steps": accumulate_steps,
        "every": every,
        "first_step": first_step,
        "epsilons": [asdict(each) for each in backend.recorder.epsilons()] if backend.recorder else [],
    }
