"""One step on two contexts, for the conformance kit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from unifiedamp.backend import LossScale, Policy, SessionSpec

from ..backend import MXNetBackend
from ..mxnet_api import from_numpy, gluon, mx
from .models import Probe


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
    contexts = [mx.cpu(0), mx.cpu(1)]
    backend = MXNetBackend(SessionSpec(Policy(), loss_scale, device="cpu"))
    model = make()
    model.initialize(ctx=contexts)
    trainer = gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": 0.1})
    training = backend.training
    training.prepare([model], [trainer])
    with backend.precision.autocast(True, None):
        rows = zip(gradients, contexts, strict=True)
        losses = [model(from_numpy(np.array(row, np.float32), context)) for row, context in rows]
    with training.scale_loss(losses, [trainer]) as scaled:
        scaled.backward()
    if max_norm is not None:
        training.unscale(trainer)
        training.clip_grad_norm(trainer, max_norm)
    training.step(trainer, True)
    weights = [[float(getattr(model, f"w{i}").data(c).asnumpy()[0]) for i in range(model.count)] for c in contexts]
    return weights, training.read_state().skipped_steps
