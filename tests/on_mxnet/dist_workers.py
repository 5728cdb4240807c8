"""Two workers of a ``dist_sync`` kvstore, their scheduler and server, each this file in a process.

Each worker writes what became of its steps to the folder ``RESULTS``, for ``test_dist_conditions.py``: those of
``amp.skip_if``, those before which a state is loaded, or those of one case of the kit's, since a process can make one
distributed kvstore.
"""

import json
import math
import os
import pickle
from pathlib import Path

import numpy as np

import unifiedamp as ua
from unifiedamp.conformance.ranks import LEARNING_RATE, RankCase, RankKind, play
from unifiedamp.conformance.ranks.cases import SCALE, Maker

MOMENTS = ((0, 0), (1, 0), (0, 1), (1, 1), (0, 0))
"""Whether the condition holds on each worker."""


def prepared(amp, kvstore="dist_sync", in_units=1):
    """Return a model of one weight, and its Trainer."""
    import mxnet as mx
    from mxnet import gluon

    model = gluon.nn.Dense(1, use_bias=False, in_units=in_units)
    model.initialize(mx.init.One())
    trainer = gluon.Trainer(
        model.collect_params(), "sgd", {"learning_rate": 0.25}, kvstore=kvstore, update_on_kvstore=False
    )
    return amp.prepare(model, trainer)


def session(loss_scale):
    """Return a session, its model and Trainer, and the weight."""
    amp = ua.Amp("mxnet", "float32", loss_scale=loss_scale, device="cpu")
    model, trainer = prepared(amp)
    return amp, model, trainer, *model.collect_params().values()


def train(rank):
    amp, model, trainer, weight = session(8.0)
    seen = []
    for index, moment in enumerate(MOMENTS):
        amp.backward(lambda: model(amp.to_native(np.ones((1, 1), np.float32))).sum(), trainer)
        amp.skip_if(amp.to_native(np.float32(moment[rank])) if index % 2 else bool(moment[rank]))
        reason = amp.step(trainer).reason
        seen.append([reason, float(weight.data().asnumpy().item()), amp.applied_steps])
    return [seen, records(amp, model, trainer)]


RECORDED = ("plain", "data", "gradient", "overflow")


def rows(rank, number, case="plain"):
    """Return what a worker gives its model in a step."""
    added = 0.5 if (rank, number, case) == (1, 2, "data") else 0.0
    return np.full((2, 1), 0.5 * number + 0.25 * rank + added, np.float32)


def record(amp, model, trainer, ranks, case="plain", every=1):
    """Return the records of three steps on what these workers' models get, the loss being the mean over both."""
    from mxnet import autograd

    from unifiedamp.conformance.recorded import Kept

    class Spoiled(autograd.Function):
        """Hands values on as they are, and their gradients times ``factor``."""

        factor = 1.0

        def forward(self, x):
            return x.copy()

        def backward(self, gradient):
            return gradient * self.factor

    (weight,), native, kept = model.collect_params().values(), trainer._allreduce_grads, Kept()

    def wrong_sum():
        native()
        weight.grad()[:] = math.inf

    with amp.record(kept, every=every, compare=every is not None):
        for number in (1, 2, 3):
            x = amp.to_native(np.concatenate([rows(rank, number, case) for rank in ranks]))
            spoiled = Spoiled()
            spoiled.factor = 1.5 if (ranks, number, case) == ([1], 2, "gradient") else 1.0
            amp.backward(lambda x=x, f=spoiled: (f(model(x)) ** 2).mean() * len(ranks) / 2, trainer)
            trainer._allreduce_grads = wrong_sum if (number, case) == (2, "overflow") else native
            amp.step(trainer)
    return kept.records


def records(amp, model, trainer):
    """Return those of each case, from one weight and one state of the session; MXNet numbers the workers."""
    rank = trainer._kvstore.rank
    (weight,), state, found = model.collect_params().values(), ua.Amp("mxnet", loss_scale=8.0).state_dict(), {}
    for case in RECORDED:
        weight.set_data(amp.to_native(np.ones((1, 1), np.float32)))
        amp.load_state_dict(state)
        found[case] = record(amp, model, trainer, [rank], case)
    found["by one alone"] = record(amp, model, trainer, [rank], every=1 if rank == 0 else None)
    return found


def load(rank):
    """Worker 0 alone loads, then both the same; return what was said, and the weights and scales after."""
    amp, model, trainer, weight = session(ua.DynamicLossScale(initial_scale=8.0))
    seen = []
    for loads in ((), (0,), (0, 1), ()):
        if rank in loads:
            state = amp.state_dict()
            amp.load_state_dict({**state, "state": {**state["state"], "good_steps": 5}})
        try:
            amp.backward(lambda: model(amp.to_native(np.ones((1, 1), np.float32))).sum(), trainer)
            amp.step(trainer)
            said = ""
        except ua.PrepareError as error:
            said = str(error)
        seen.append([said, float(weight.data().asnumpy().item()), amp.state_dict()["state"]["good_steps"]])
    return seen


KIND = RankKind(reduction="sum", counts=(2,))
WINDOW = 2


def case():
    """Windows, clipped; inf on each worker in turn, in each place of a window, and nan."""
    make = Maker(KIND, 2)
    batches = make.batches(9 * WINDOW)
    for index, rank, value in (
        (2, 0, math.inf),
        (5, 1, -math.inf),
        (9, 1, math.nan),
        (12, 0, math.inf),
        (12, 1, math.inf),
    ):
        make.spoil(batches, index, rank, value, index % 3)
    return RankCase("workers", make.frozen(batches), SCALE, WINDOW, max_norm=3.0)


def worker(rank):
    from unifiedamp_mxnet.conformance.ranks import Contexts
    from unifiedamp_mxnet.mxnet_api import gluon

    class Worker(Contexts):
        """One context in each worker."""

        def make(self, case):
            model, _ = super().make(case)
            settings = {"learning_rate": LEARNING_RATE, "momentum": case.momentum}
            return model, [
                gluon.Trainer(model.ordered(), "sgd", settings, kvstore="dist_sync", update_on_kvstore=False)
            ]

        def batch(self, ranks):
            return super().batch([ranks[rank]])

    return play(Worker(1, {}), case(), os.environ["FORM"])


if os.environ.get("DMLC_ROLE") in ("scheduler", "server"):
    # Importing MXNet serves the workers, until they end.
    ua.Amp("mxnet", "float32", device="cpu")
elif os.environ.get("DMLC_ROLE") == "worker":
    rank = int(os.environ["RANK"])
    if os.environ["FORM"] == "load":
        Path(os.environ["RESULTS"], f"{rank}.json").write_text(json.dumps(load(rank)))
    elif os.environ["FORM"]:
        Path(os.environ["RESULTS"], f"{rank}.pickle").write_bytes(pickle.dumps(worker(rank)))
    else:
        Path(os.environ["RESULTS"], f"{rank}.json").write_text(json.dumps(train(rank)))
