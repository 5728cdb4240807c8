"""What ``amp.record`` checks, and the header of a recording."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..config import plugins
from ..errors import ConfigError, StepOrderError, UnsupportedError
from .reading import FORMAT, VERSION
from .recorder import Recorder
from .sinks import open_sink

if TYPE_CHECKING:
    from ..session import Amp


def start_recording(
    amp: Amp, present: Recorder | None, targets: Sequence[Any], every: int, activations: bool
) -> Recorder:
    """Return a recorder that is at work; see ``Amp.record``."""
    _check(amp, present, targets, every)
    state = amp.backend.training.read_state()
    optimizers = max(1, len(amp._window.slots))
    first = (state.applied_steps + state.skipped_steps) // optimizers + 1
    header = _header(amp, every, first)
    amp.backend.recorder.begin(activations)
    try:
        sinks = [open_sink(target) for target in targets]
    except BaseException:
        amp.backend.recorder.end()
        raise
    scaling = amp.loss_scale_settings.enabled
    return Recorder(amp.backend, amp._watch, sinks, every, first, activations, scaling, header)


def _check(amp: Amp, present: Recorder | None, targets: Sequence[Any], every: int) -> None:
    support = amp.capabilities.feature("recording")
    if not support:
        raise UnsupportedError(f"amp.record: backend {amp.backend.name!r} cannot record: {support.reason}")
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise ConfigError(f"amp.record: every must be a whole number of at least 1, got {every!r}")
    if not targets:
        raise ConfigError("amp.record: where to? Give a path ('run.jsonl'), a sink or a function")
    if present is not None and not present.stopped:
        raise StepOrderError("amp.record: this session records already; stop() that recorder first")
    if not amp._window.slots:
        raise StepOrderError("amp.record: prepare a model and an optimizer first; there is nothing to look at yet")


def _header(amp: Amp, every: int, first_step: int) -> dict[str, Any]:
    from .. import __version__

    plugin = plugins.load_plugin(amp.backend.name)
    return {
        "kind": "header",
        "format": FORMAT,
        "version": VERSION,
        "time": time.time(),
        "unifiedamp": __version__,
        "backend": amp.backend.name,
        "framework": plugin.framework,
        "framework_version": plugins.installed_version(plugin),
        "device": amp.capabilities.device,
        "policy": str(amp.policy),
        "compute_dtype": amp.policy.compute_dtype,
        "loss_scale": str(amp.loss_scale_settings),
        "scale": amp.backend.training.read_state().scale,
        "accumulate_steps": amp._window.accumulate_steps,
        "every": every,
        "first_step": first_step,
        "epsilons": [asdict(each) for each in amp.backend.recorder.epsilons()],
    }
