"""Two workers of a ``dist_sync`` kvstore, their scheduler and server, each this file in a process.

Each worker writes what became of its steps to the folder ``RESULTS``, for ``test_dist_conditions.py``.
"""

import json
import os
from pathlib import Path

import numpy as np

import unifiedamp as ua

amp = ua.Amp("mxnet", "float32", loss_scale=8.0, device="cpu")

MOMENTS = ((0, 0), (1, 0), (0, 1), (1, 1), (0, 0))
"""Whether the condition holds on each worker."""


def train(rank):
    import mxnet as mx
    from mxnet import gluon

    model = gluon.nn.Dense(1, use_bias=False, in_units=1)
    model.initialize(mx.init.One())
    trainer = gluon.Trainer(
        model.collect_params(), "sgd", {"learning_rate": 0.25}, kvstore="dist_sync", update_on_kvstore=False
    )
    _, trainer = amp.prepare(model, trainer)
    (weight,) = model.collect_params().values()
    seen = []
    for index, moment in enumerate(MOMENTS):
        amp.backward(lambda: model(amp.to_native(np.ones((1, 1), np.float32))).sum(), trainer)
        amp.skip_if(amp.to_native(np.float32(moment[rank])) if index % 2 else bool(moment[rank]))
        reason = amp.step(trainer).reason
        seen.append([reason, float(weight.data().asnumpy().item()), amp.applied_steps])
    return seen


if os.environ["DMLC_ROLE"] == "worker":  # importing MXNet serves the others, until the workers end
    rank = int(os.environ["RANK"])
    Path(os.environ["RESULTS"], f"{rank}.json").write_text(json.dumps(train(rank)))
