"""Steps on two contexts, for the conformance kit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from unifiedamp.backend import LossScale, Policy, SessionSpec

from .._types import Trainer
from ..backend import MXNetBackend
from ..device.arrays import to_numpy
from ..mxnet_api import from_numpy, gluon, mx
from .models import Probe

CONTEXTS = [mx.cpu(0), mx.cpu(1)]


def step(
    make: Callable[[], Probe],
    gradients: Sequence[Sequence[float]],
    loss_scale: LossScale,
    max_norm: float | None = None,
) -> tuple[list[list[float]], int]:
    """Return the parameters on each context after one step, and how many steps were skipped.

    Args:
        make: makes the probe.
        gradients: the true gradients on each context; Gluon sums them.
        loss_scale: the session's.
        max_norm: clip the gradients to this norm; None leaves them.
    """
    backend = MXNetBackend(SessionSpec(Policy(), loss_scale, device="cpu"))
    training = backend.training
    model, trainer = _prepared(backend, make, 0.1)
    _backward(backend, model, trainer, gradients)
    if max_norm is not None:
        training.unscale(trainer)
        training.clip_grad_norm(trainer, max_norm)
    training.step(trainer, True)
    weights = [[float(getattr(model, f"w{i}").data(c).asnumpy()[0]) for i in range(model.count)] for c in CONTEXTS]
    return weights, training.read_state().skipped_steps


def steps(
    make: Callable[[], Probe],
    policy: Policy,
    gradients: Sequence[Sequence[float | None]],
    loss_scale: LossScale,
    clip_value: float | None,
) -> list[tuple[float, float]]:
    """Return each context's parameter and what was trained after these steps; see ``Harness.device_steps``."""
    masters = policy.param_dtype != "float32"
    backend = MXNetBackend(SessionSpec(policy, loss_scale, device="cpu", master_weights=masters))
    training = backend.training
    model, trainer = _prepared(backend, make, 2.0**-13)
    for pair in gradients:
        _backward(backend, model, trainer, [None if one is None else (one,) for one in pair])
        if clip_value is not None:
            training.unscale(trainer)
            training.clip_grad_value(trainer, clip_value)
        training.step(trainer, True)
    parameters = [to_numpy(model.w0.data(context)).item() for context in CONTEXTS]
    if not masters:
        return [(value, value) for value in parameters]
    # Plain SGD has no state besides the master; their order differs between MXNet 1 and 2.
    states = [next(part for part in updater.states[0] if part is not None) for updater in trainer._updaters]
    return list(zip(parameters, [state.asnumpy().item() for state in states], strict=True))


def recorded(gradients: Sequence[float], loss_scale: LossScale) -> Mapping[str, Sequence[int]]:
    """Return name → counts of the true gradients of a recorded step; see ``Harness.recorded_device_run``."""
    backend = MXNetBackend(SessionSpec(Policy(), loss_scale, device="cpu"))
    model, trainer = _prepared(backend, lambda: Probe([1.0]), 0.1)
    recorder = backend.recorder
    recorder.begin(False)
    _backward(backend, model, trainer, [(value,) for value in gradients])
    recorder.note_gradients(trainer)
    backend.training.step(trainer, True)
    return {name: counts.true for name, counts in recorder.end().gradients.items()}


def _prepared(backend: MXNetBackend, make: Callable[[], Probe], learning_rate: float) -> tuple[Probe, Trainer]:
    model = make()
    model.initialize(ctx=CONTEXTS)
    trainer: Trainer = gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": learning_rate})
    backend.training.prepare([model], [trainer])
    return model, trainer


def _backward(
    backend: MXNetBackend, model: Probe, trainer: Trainer, gradients: Sequence[Sequence[float] | None]
) -> None:
    with backend.precision.autocast(True, None):
        rows = [pair for pair in zip(gradients, CONTEXTS, strict=True) if pair[0] is not None]
        losses = [model(from_numpy(np.array(row, np.float32), context)) for row, context in rows]
    with backend.training.scale_loss(losses, [trainer]) as scaled:
        scaled.backward()
