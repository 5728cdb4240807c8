"""Makes sessions and steps for tests, so that each test is the loop and an assertion."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import unifiedamp as ua
from unifiedamp.backend import COMPILE_MODES

from .emulated import or_emulated


@dataclass
class Run:
    """A prepared probe model under a session."""

    amp: ua.Amp
    harness: Any
    model: Any
    optimizer: Any
    step: Any
    scales: list[float] = field(default_factory=list)

    def feed(self, *gradients: float) -> None:
        """Run one step whose true gradients are these."""
        self.scales.append(self.amp.loss_scale)
        self.step(self.amp.to_native(np.array(gradients, np.float32)))

    def weights(self) -> list[float]:
        """Return the probe's parameters as they are now."""
        return [float(value[0]) for value in self.harness.parameters(self.model).values()]


def session(
    harness: Any,
    form: str = "eager",
    policy: Any = "float32",
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> ua.Amp:
    """Return a session in the form's ``backend_options``, and in ``settings`` of the backend besides.

    A mixed policy that does not run on this machine is emulated where the backend can.
    """
    extra = {**harness.forms[form], **(settings or {})}
    options["backend_options"] = {harness.backend: extra} if extra else None
    return or_emulated(harness, policy, lambda policy: ua.Amp(harness.backend, policy, **options))


def settled_state(harness: Any) -> Any:
    """Return ``harness.global_state()`` once nothing is left to collect: sessions of earlier tests, say."""
    gc.collect()
    return harness.global_state()


def compiled(amp: ua.Amp, form: str, fn: Any) -> Any:
    """Return ``fn`` as the form runs it: a form named like a mode of ``amp.compile`` is compiled in that mode."""
    mode: Any = form if form in COMPILE_MODES else None
    return fn if form.startswith("eager") else amp.compile(fn, mode=mode)


def probe_run(
    harness: Any, form: str = "eager", *, values: tuple[float, ...] = (1.0,), lr: float = 0.1, clip: Any = None,
    optimizer: str = "sgd", make: Any = None, probe: str = "probe", **options: Any,
) -> Run:  # fmt: skip
    """A probe model, an optimizer and a step that takes the gradients as its input.

    Args:
        harness, form: the test's.
        values: the parameters.
        lr: the learning rate.
        clip: called with the session and the optimizer before the step.
        optimizer: the harness's method that makes it of the models.
        make: makes the optimizer of the model, in place of both.
        probe: the harness's method that makes the model.
        **options: the session's.
    """
    amp = session(harness, form, **options)
    with amp.scope():
        model = getattr(harness, probe)(values)
        native = make(model) if make else getattr(harness, optimizer)([model], lr)
    model, native = amp.prepare(model, native)

    context_form = bool(amp.capabilities.feature("context_form"))

    def step(x: Any) -> Any:
        if context_form:
            with amp.autocast():
                loss = model(x)
            with amp.scale_loss(loss, native) as scaled_loss:
                scaled_loss.backward()
        else:
            loss = amp.backward(lambda: model(x), native)
        if clip is not None:
            clip(amp, native)
        amp.step(native)
        return loss

    return Run(amp, harness, model, native, compiled(amp, form, step))
